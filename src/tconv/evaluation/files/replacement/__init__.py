"""Further checks of a candidate whose results are equal: gradients, changed weights and other inputs."""
