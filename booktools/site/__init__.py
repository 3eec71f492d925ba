"""The book as a reader holds it: HTML, EPUB and PDF from the stored notebooks and `_quarto.yml`.

`source` reads, `number` numbers and resolves across chapters, `html`, `epub` and `pdf` write; all
three from the same pandoc tree. `build` does it in this order, `check` looks at the result.
"""
