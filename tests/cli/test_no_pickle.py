"""No pickle anywhere: reading one runs whatever its author wrote."""

import re

from conftest import SOURCE

FOLDERS = ["common", "kernels", "solver", "coordinator", "worker", "ops", "tests", "helm"]
READERS = re.compile(r"\bimport pickle|pickle\.load|cPickle|joblib|torch\.load\(|allow_pickle=True|torch::(jit::)?load\(|"
                     r"torch::pickle_load|yaml\.(unsafe_)?load\(|dill\.|shelve\.")


def files():
    return [path for folder in FOLDERS for path in (SOURCE / folder).rglob("*") if path.is_file()]


def test_no_program_reads_pickles():
    sources = [path for path in files() if path.suffix in {".py", ".cc", ".h", ".cu", ".sh"}]
    assert len(sources) > 100
    found = [path for path in sources if path.name != "test_no_pickle.py"
             and READERS.search(path.read_text(errors="replace"))]
    assert found == []


def test_no_pickle_is_shipped():
    assert [path for path in files() if path.suffix in {".pt", ".pth", ".pkl", ".ckpt"}] == []
