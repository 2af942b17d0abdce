"""Any bash snippet does the same in a session as in plain bash."""

from __future__ import annotations

import os
import subprocess
import tempfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.shell_habitats import ENVIRONMENT, native

NAMES = st.sampled_from(["a", "b", "c", "d"])
WORDS = st.sampled_from(
    [
        "x",
        "'y z'",
        '"$a"',
        "$b",
        "${c-none}",
        "$((1+2))",
        "'*'",
        "{1..3}",
        "$(echo sub)",
        "~",
        "'a\tb'",
        "é",
        "$?",
        '""',
    ]
)
LISTS = st.lists(WORDS, max_size=4).map(" ".join)

SIMPLE = st.one_of(
    st.builds("{}={}".format, NAMES, WORDS),
    st.builds("export {}={}".format, NAMES, WORDS),
    st.builds("declare -i {}=5+{}".format, NAMES, st.integers(0, 9)),
    st.builds("{}=({})".format, st.sampled_from(["r", "s"]), LISTS),
    st.builds("{}+=({})".format, st.sampled_from(["r", "s"]), LISTS),
    st.builds("unset {}".format, NAMES),
    st.builds("echo {}".format, LISTS),
    st.builds("printf '[%s]\\n' {}".format, LISTS),
    st.builds("echo {} >&2".format, LISTS),
    st.builds("cat <<E\n${} {}\nE".format, NAMES, st.sampled_from(["text", "$((2*3))", "`echo q`"])),
    st.builds("read {} <<< {}".format, NAMES, WORDS),
    st.builds("set -- {}".format, LISTS),
    st.builds("shift {}".format, st.integers(0, 3)),
    st.builds("f() {{ echo f $1; return {}; }}".format, st.integers(0, 3)),
    st.sampled_from(
        [
            *(
                "true",
                "false",
                "f 1",
                "cd /",
                "cd /usr",
                "cd /nosuch",
                "nosuchcommand",
                "(exit 3)",
                "echo $#-$@",
            ),
            *(
                "set -u",
                "set +u",
                "set -f",
                "set +f",
                "shopt -s nullglob",
                "echo [x]*",
                ":",
                "exit 4",
                "set -e",
            ),
            *(
                "echo ${r[@]-} ${#s[@]}",
                "eval 'echo $a'",
                "echo a | tr a b",
                "test -n ''",
                "echo $(( 1 / 0 ))",
            ),
            *(
                "trap 'echo bye' EXIT",
                "[[ $a == x* ]]",
                "echo 'unclosed",
                "fi",
                "umask 027",
                "umask",
                "let c=3*4",
            ),
        ]
    ),
)


def compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("{}\n{}".format, inner, inner),
        st.builds("if {}\nthen {}\nelse {}\nfi".format, inner, inner, inner),
        st.builds("for a in {}\ndo {}\ndone".format, LISTS, inner),
        st.builds("{{ {}\n}}".format, inner),
        st.builds("( {}\n)".format, inner),
        st.builds("case $b in x) {}\n;; *) {}\n;; esac".format, inner, inner),
        st.builds("true && {}".format, inner),
        st.builds("false || {}".format, inner),
    )


SNIPPETS = st.recursive(SIMPLE, compound, max_leaves=6)
#: What is compared afterwards, in the same process: the variables that the snippets use, and more.
AFTER = 'declare -p a b c d r s 2>/dev/null; echo "$#:$*" "$PWD"; umask; type -t f'


def plain(snippets: list[str], directory: str) -> list[tuple[bytes, bytes, int]]:
    """The same in one interactive bash, each as a script that it reads: what it printed, and its status."""
    parts = []
    for number, snippet in enumerate(snippets):
        with open(os.path.join(directory, f"t{number}"), "w") as file:
            file.write(snippet)
        parts.append(f". {directory}/t{number} </dev/null >{directory}/o{number} 2>{directory}/e{number}\n")
        parts.append(f"echo $? >{directory}/c{number}\n. {directory}/c{number}r\n")
        with open(os.path.join(directory, f"c{number}r"), "w") as file:
            file.write(f"read __c <{directory}/c{number}; return $__c")
    argv = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
    done = subprocess.run(
        argv,
        input="".join(parts),
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        cwd="/",
        check=False,
        timeout=30,
    )
    results = []
    for number in range(len(snippets)):
        contents = []
        for stream in "oec":
            path = os.path.join(directory, f"{stream}{number}")
            with open(path, "rb") if os.path.exists(path) else open(os.devnull, "rb") as file:
                contents.append(file.read())
        results.append((contents[0], contents[1], int(contents[2] or done.returncode)))
        if not contents[2]:  # it did not come back from this one
            break
    return results


@pytest.mark.slow
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
@given(st.lists(SNIPPETS, min_size=1, max_size=3))
def test_a_session_answers_as_bash_does(snippets: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory, native() as tried:
        tried.run("cd /; unset OLDPWD")
        expected = plain([*snippets, AFTER], directory)
        for number, snippet in enumerate([*snippets, AFTER][: len(expected)]):
            out, err, outcome = tried.run(snippet)
            wanted_out, wanted_err, wanted_status = expected[number]
            # The one name that differs: where the text is read from. We name none.
            wanted_err = wanted_err.replace(f"{directory}/t{number}: ".encode(), b"")
            assert (out, err, outcome.exit_code) == (wanted_out, wanted_err, wanted_status), snippet
            assert outcome.shell_exited == (number == len(expected) - 1 and len(expected) <= len(snippets))
        assert tried.run("echo whole >&2").err == b"whole\n"
