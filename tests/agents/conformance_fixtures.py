"""What the conformance package asks for by name, of the kinds that `staddle mcp` offers. Only for its
tests."""

from __future__ import annotations

import base64
from typing import Any, Literal

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import (
    AudioContent,
    ElicitRequest,
    ElicitRequestFormParams,
    EmbeddedResource,
    ImageContent,
    InputRequiredResult,
    TextContent,
    TextResourceContents,
)
from pydantic import BaseModel, Field

PNG = base64.b64encode(
    base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
).decode()
WAV = base64.b64encode(
    b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0@\x1f\0\0@\x1f\0\0\1\0\x08\0data\0\0\0\0"
).decode()


def picture() -> ImageContent:
    return ImageContent(type="image", data=PNG, mime_type="image/png")


def embedded(address: str) -> EmbeddedResource:
    resource = TextResourceContents(uri=address, mime_type="text/plain", text="an embedded resource")
    return EmbeddedResource(type="resource", resource=resource)


def question(name: str, message: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": []}
    asked = ElicitRequestFormParams(message=message, requested_schema=schema)
    return {name: ElicitRequest(params=asked)}


class Answers(BaseModel):
    username: str
    email: str


class Defaults(BaseModel):
    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Literal["active", "inactive", "pending"] = "active"
    verified: bool = True


class Enums(BaseModel):
    untitledSingle: Literal["option1", "option2", "option3"] = Field("option1")  # noqa: N815


def add_fixtures(app: MCPServer[Any]) -> None:
    @app.tool()
    def test_simple_text() -> list[TextContent]:
        """Return text."""
        return [TextContent(type="text", text="This is a simple text response for testing.")]

    @app.tool()
    def test_image_content() -> list[ImageContent]:
        """Return a picture."""
        return [picture()]

    @app.tool()
    def test_audio_content() -> list[AudioContent]:
        """Return a recording."""
        return [AudioContent(type="audio", data=WAV, mime_type="audio/wav")]

    @app.tool()
    def test_embedded_resource() -> list[EmbeddedResource]:
        """Return a resource."""
        return [embedded("test://embedded-resource")]

    @app.tool()
    def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
        """Return several kinds."""
        text = TextContent(type="text", text="Multiple content types test:")
        return [text, picture(), embedded("test://mixed-content-resource")]

    @app.tool()
    def test_error_handling() -> str:
        """Fail."""
        raise ToolError("This tool intentionally returns an error for testing")

    @app.tool()
    async def test_tool_with_progress(ctx: Context[Any, Any]) -> str:
        """Report progress."""
        for step in (0, 50, 100):
            await ctx.report_progress(step, 100, f"{step} of 100")
        return "done"

    @app.tool()
    async def test_elicitation(message: str, ctx: Context[Any, Any]) -> str:
        """Ask."""
        found = await ctx.elicit(message, Answers)
        return f"User response: action={found.action}"

    @app.tool()
    async def test_elicitation_sep1034_defaults(ctx: Context[Any, Any]) -> str:
        """Ask, with defaults."""
        found = await ctx.elicit("Please review and update the form fields with defaults", Defaults)
        return f"Elicitation completed: action={found.action}"

    @app.resource("test://static-text", mime_type="text/plain")
    def static_text() -> str:
        return "This is the content of the static text resource."

    @app.resource("test://static-binary", mime_type="image/png")
    def static_binary() -> bytes:
        return base64.b64decode(PNG)

    @app.resource("test://template/{id}/data", mime_type="application/json")
    def template(id: str) -> str:
        return f'{{"id": "{id}", "templateTest": true, "data": "Data for ID: {id}"}}'

    @app.tool()
    async def test_input_required_result_elicitation(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        """Ask for a name."""
        given = (ctx.input_responses or {}).get("user_name")
        if given is None:
            return InputRequiredResult(input_requests=question("user_name", "What is your name?"))
        return f"Hello {given}"

    for name in ("test_input_required_result_request_state", "test_input_required_result_tampered_state"):

        async def with_state(ctx: Context[Any, Any]) -> str | InputRequiredResult:
            """Ask, with a state that the client has to bring back."""
            if ctx.request_state != "first":
                return InputRequiredResult(
                    input_requests=question("confirm", "Go on?"), request_state="first"
                )
            return "state-ok"

        app.add_tool(with_state, name=name)

    @app.tool()
    async def test_input_required_result_multi_round(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        """Ask twice."""
        if ctx.request_state is None:
            return InputRequiredResult(input_requests=question("step1", "Name?"), request_state="one")
        if ctx.request_state == "one":
            return InputRequiredResult(input_requests=question("step2", "Colour?"), request_state="two")
        return "done"
