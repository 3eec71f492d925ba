"""Package metadata, read from settings.ini."""

from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

parser = ConfigParser(delimiters=["="])
parser.read(Path(__file__).with_name("settings.ini"), encoding="utf-8")
settings = parser["DEFAULT"]


def lines(key):
    return settings[key].split("\n")[1:]


setup(
    name=settings["lib_name"],
    version=settings["version"],
    description=settings["description"],
    author=settings["author"],
    license=settings["license"],
    keywords=settings["keywords"],
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    python_requires=">=" + settings["min_python"],
    packages=find_packages(include=["agentrl", "agentrl.*", "booktools", "booktools.*"]),
    package_data={"agentrl": ["data/*/*"]},
    install_requires=lines("requirements"),
    extras_require={
        "chapters": lines("chapter_requirements"),
        "book": lines("chapter_requirements") + lines("book_requirements"),
        "bench": lines("bench_requirements"),
        "llm": lines("llm_requirements"),
        **{name: lines(name + "_requirements") for name in ("ray", "trl", "openenv", "verifiers", "verl")},
    },
)
