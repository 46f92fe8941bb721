"""The kernels' text, and the function of it that Python calls. It stands at the end of a file."""
# mypy: ignore-errors

# ---- copied from here on

# The CUDA text of the kernels, by family.
_CUDA = {}

# The Python module of each family, with one function, `launch`. It is plain C: pybind11 takes seconds to compile.
_BINDING = r"""
#include <Python.h>
#include <cstdint>
#include <vector>

int64_t launch(const std::vector<int64_t>& numbers);

static PyObject* call(PyObject*, PyObject* const* given, Py_ssize_t count) {
  std::vector<int64_t> numbers(count);
  for (Py_ssize_t i = 0; i < count; ++i) numbers[i] = PyLong_AsLongLong(given[i]);
  return PyErr_Occurred() ? nullptr : PyLong_FromLongLong(launch(numbers));
}

static PyMethodDef functions[] = {{"launch", (PyCFunction)(void (*)())call, METH_FASTCALL, nullptr}, {}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "kernel", nullptr, -1, functions};

#define TCONV_INIT(name) TCONV_INIT_OF(name)
#define TCONV_INIT_OF(name) PyInit_##name
PyMODINIT_FUNC TCONV_INIT(TORCH_EXTENSION_NAME)() { return PyModule_Create(&definition); }
"""
