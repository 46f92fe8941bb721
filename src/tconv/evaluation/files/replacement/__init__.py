"""What a replacement must still do beside its result: gradients, other weights, other inputs."""
