"""A scripted mini-swe-agent in a sandbox."""

from __future__ import annotations

from documented import run_examples
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.models.test_models import DeterministicModel, make_output

NAME = "staddle.adapters.mini_swe_agent.StaddleEnvironment"


def test_it_is_found_by_its_name_and_runs_commands(tmp_path):
    (tmp_path / "a.txt").write_text("host")
    made = get_environment({"environment_class": NAME, "workspace": str(tmp_path), "timeout": 2})
    answer = made.execute({"command": "cat a.txt; echo e >&2; echo x > a.txt; exit 3"})
    assert (answer["output"], answer["returncode"]) == ("hoste\n", 3)
    late = made.execute({"command": "echo before; sleep 60"})
    assert (late["output"], late["returncode"]) == ("before\n", -1)
    assert "timed out" in late["exception_info"]
    assert made.get_template_vars()["system"] == "Linux"
    assert made.serialize()["info"]["config"]["environment_type"] == NAME
    made.close()
    assert (tmp_path / "a.txt").read_text() == "host"


def test_a_scripted_agent(tmp_path):
    outputs = [
        make_output("look", [{"command": "echo hello > made.txt; cat made.txt"}]),
        make_output("done", [{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat made.txt"}]),
    ]
    environment = get_environment({"environment_class": NAME})
    agent = DefaultAgent(
        DeterministicModel(outputs=outputs),
        environment,
        system_template="You work on {{system}}.",
        instance_template="Do: {{task}}",
        cost_limit=0,
    )
    result = agent.run("say hello")
    assert result["submission"] == "hello\n"
    environment.close()


def test_the_documented_examples(tmp_path):
    run_examples("mini_swe_agent", tmp_path)
