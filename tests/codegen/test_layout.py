"""How a written file's CUDA text is laid out: fewer lines, none too long, and the same tokens."""

from __future__ import annotations

import re

import pytest

from tconv.codegen.headers.layout import compact, filled
from tconv.kernels.source import header_directory

HEADERS = sorted(str(path.relative_to(header_directory())) for path in header_directory().rglob("*.cuh"))
BEFORE = """\
struct Half {
  unsigned short bits;
};

template <class T>
struct Choice {
  using type = T;
};

struct Copies {
  int batch, rows;

  // What it is for.
  TCONV_DEVICE Copies(int batch, int rows, int columns_of_the_image, int rows_of_the_image)
      : batch(batch),
        rows(rows),
        columns(ceil_div(columns_of_the_image, rows_of_the_image)) {}

  template <int N>
  TCONV_DEVICE void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
  }
  TCONV_DEVICE void end() {
  }

  static constexpr int first = 1;
  static constexpr int second = 2 * first;
  static constexpr bool third = first < second;
  static constexpr bool a_condition_with_a_long_name = first < second && second < 3 && third && 4 * first < 9;
  static constexpr bool another = third;
};

TCONV_DEVICE void load(const void* row, unsigned (&words)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];  // two  spaces, kept"
               : "=r"(words[0]), "=r"(words[1]),
                 "=r"(words[2])
               : "r"(row)
               : "memory");
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = 0;
  }
  const Part part = {
      row,
      words,
  };
  const int* const pointer = words;
  const int* const other = words;
  store(Both{row, words}
            .store());
}
"""
AFTER = """\
struct Half { unsigned short bits; };

template <class T> struct Choice { using type = T; };

struct Copies {
  int batch, rows;

  // What it is for.
  TCONV_DEVICE Copies(int batch, int rows, int columns_of_the_image, int rows_of_the_image) : batch(batch), rows(rows),
      columns(ceil_div(columns_of_the_image, rows_of_the_image)) {}

  template <int N> TCONV_DEVICE void wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
  TCONV_DEVICE void end() {}

  static constexpr int first = 1, second = 2 * first;
  static constexpr bool third = first < second;
  static constexpr bool a_condition_with_a_long_name = first < second && second < 3 && third && 4 * first < 9;
  static constexpr bool another = third;
};

TCONV_DEVICE void load(const void* row, unsigned (&words)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];  // two  spaces, kept"
      : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]) : "r"(row) : "memory");
  TCONV_UNROLL for (int i = 0; i < 4; ++i) words[i] = 0;
  const Part part = {row, words};
  const int* const pointer = words;
  const int* const other = words;
  store(Both{row, words}.store());
}
"""
DEEP = """\
int f() {
  return outer(inner(a_rather_long_name_of_a_value + another_rather_long_name_of_a_value,
                     yet_another_long_name), 1,
               2);
}
"""


def test_lines_are_filled_as_people_would() -> None:
    assert compact(filled(BEFORE)) == AFTER
    assert compact(filled(AFTER)) == AFTER


def test_no_line_ends_deep_within_brackets() -> None:
    assert filled(DEEP.replace("yet_another", "yet_another" * 3)) == DEEP.replace("yet_another", "yet_another" * 3)


@pytest.mark.parametrize("name", HEADERS)
def test_the_headers_keep_their_tokens(name: str) -> None:
    text = (header_directory() / name).read_text(encoding="utf-8")
    made = compact(filled(text))
    assert max(map(len, made.splitlines())) <= 120
    assert len(made.splitlines()) <= len(text.splitlines())
    assert tokens(made) == tokens(text)


def tokens(text: str) -> list[str]:
    """What a compiler sees, but for what layout may take away: braces, empty statements, repeated declarations."""
    text = re.sub(r"//[^\n]*", "", text).replace("TCONV_UNROLL", "").replace("#pragma unroll\n", "")
    text = re.sub(r"#if !defined\(TCONV_EMULATOR\)|#endif|\\\n", " ", text)
    text = re.sub(r"; *\s*(?:static constexpr|const) (?:int|bool|unsigned|long long) (?=\w)", ", ", text)
    return [token for token in re.findall(r'"(?:[^"\\]|\\.)*"|\w+|[^\s\w]', text) if token not in "{},"]


def test_neighbouring_constants_of_types_of_several_words_stay_apart() -> None:
    """``const unsigned char* const`` is no ``const unsigned``."""
    alone = "void f() {\n  const unsigned char* const a = g();\n  const unsigned char* const b = a + 1;\n}\n"
    assert compact(filled(alone)) == alone
    together = "void f() {\n  const unsigned a = g();\n  const unsigned b = a + 1;\n}\n"
    assert "const unsigned a = g(), b = a + 1;" in compact(filled(together))
