"""The operations of the API. The table checks requests, is the OpenAPI description, and names client options.

METHOD PATH NAME [STATUS] [TYPE]    the function of this name in `api.py`, status and type (200, object)
    Text.
    ?NAME TYPE text                 a parameter of the query; TYPE! is required
    .NAME TYPE text                 a field of the JSON body
    <MEDIA TYPE                     the body is bytes
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

#: The error about a sandbox that is unknown: the client recognises it.
NO_SANDBOX = "the server has no sandbox"
_TABLE = """
GET /v1 about
    Facts about the server.
GET /v1/openapi.json openapi
    This description.
GET /metrics metrics text/plain
    Counters and gauges, in Prometheus' text format.
GET /v1/events events
    Events of all sandboxes, in order. `missed` events are no longer kept.
    ?after integer number of the last event that you have (default: 0)
    ?wait number seconds to wait for something new (default: 0; at most 300)
    ?sandbox string only events of this sandbox
POST /v1/stop stop 202
    End the server and every sandbox. Kept sandboxes stay on disk.
POST /v1/page open_page
    Listen at a free port of this machine, if at none yet. Returns the address of the page, with the token.
GET /v1/kept kept array
    Names of kept sandboxes: create one with `keep` to continue it.
GET /v1/sandboxes list_sandboxes array
    List the sandboxes, oldest first.
    ?label string only those with this label: NAME=VALUE
POST /v1/sandboxes create 201
    Open a sandbox. It ends with the server, by `DELETE`, or by a limit of its policy.
    .workspace string|null absolute path of a directory of the host (default: an empty workspace)
    .policy object|null a policy, as in a policy file (default: the installation's)
    .backend string name of a backend (default: auto)
    .mode string overlay (default), copy, bind or readonly
    .best_effort boolean accept what this host cannot enforce (default: false)
    .env object|null variables inside
    .keep string|null name under which its changes stay on disk
    .workspace_at string|null another path inside for the workspace
    .name string|null a name for people
    .labels object|null labels, for `GET /v1/sandboxes`
    .identity object|null the user inside
    .environment string|null linux, inherit or empty
    .base string|null a root file system
    .workdir string|null directory to start in
    .freeze boolean|null hide later edits on the host
    .history boolean take a point after each command that changed files (default: false)
    .on_connect_timeout number seconds until an unanswered question is a refusal (default: 60)
    .ask boolean ask about destinations and HTTP requests that the policy leaves open: see questions
GET /v1/sandboxes/{sandbox} get
    State of a sandbox. Its id or, if no other has it, its name.
DELETE /v1/sandboxes/{sandbox} close
    Close a sandbox, and end everything in it.
POST /v1/sandboxes/{sandbox}/pause pause
    Freeze all its processes.
POST /v1/sandboxes/{sandbox}/resume resume
    Continue all its processes.
POST /v1/sandboxes/{sandbox}/lifetime lifetime
    Change when it ends. Returns the seconds left, if there is a limit and `extend` was given.
    .timeout number|null close it after so many seconds from now; null: never
    .then string close it after the timeout (default), or pause it
    .extend number close it so many seconds later
POST /v1/sandboxes/{sandbox}/interrupt interrupt
    End the commands that run now. Background processes continue.
GET /v1/sandboxes/{sandbox}/usage usage
    Resources used so far.
GET /v1/sandboxes/{sandbox}/enforced enforced
    Protections in force, and every gap.
POST /v1/sandboxes/{sandbox}/network network
    Replace the network policy of the running sandbox.
    .allow array! hosts, as in a policy; none of them: refuse all
POST /v1/sandboxes/{sandbox}/call call_method
    Call a method of the Python library by its name. A value that JSON lacks is an object with a `$`.
    .on string the object: "" (the sandbox, default), files, files:USER, session:NAME, command:ID
    .method string! the method, or property
    .args array positional arguments
    .options object named arguments
GET /v1/sandboxes/{sandbox}/commands list_commands array
    List the commands, oldest first, without their results.
POST /v1/sandboxes/{sandbox}/commands run 201
    Run a command. A repeated request with the same id gets the same command; it never runs twice.
    ?wait number seconds to wait for its end (default: until its end)
    ?text boolean add stdout and stderr as text, beside the bytes in the result (default: true)
    ?short boolean send the outcome (application/vnd.staddle.outcome): id, state and result in a line of JSON
    .id string an id of your choice, unique in the sandbox (default: the server's choice)
    .kind string run: shell text in a session (default); exec: a program; start: in the background
    .command string shell text
    .argv array a program and its arguments, in place of shell text; for exec and start
    .session string the session (default: main)
    .timeout number|null seconds, null: no limit (default: the policy's)
    .cwd string its directory
    .env object variables for this command
    .stdin string|object its standard input; bytes as a value
    .merge boolean send stderr to stdout
    .output_limit integer|string|null bytes kept in its result
    .user string|integer the user inside
    .hold boolean let it wait for the reader of its output, who loses nothing
GET /v1/sandboxes/{sandbox}/commands/{command} get_command
    State of a command, and its result.
    ?wait number seconds to wait for something new (default: 0; at most 300)
    ?text boolean add stdout and stderr as text, beside the bytes in the result (default: true)
    ?short boolean send the outcome (application/vnd.staddle.outcome): id, state and result in a line of JSON
GET /v1/sandboxes/{sandbox}/commands/{command}/output output application/octet-stream
    Output from an offset on, in order of arrival. `Staddle-Offset` is the offset of the first byte.
    ?offset integer position of the first byte (default: 0)
    ?wait number seconds to wait for something new (default: 0; at most 300)
    ?follow boolean stream until the end of the command
    ?frames boolean send frames (application/vnd.staddle.frames), which separate stdout from stderr
    ?taken boolean the bytes before `offset` have arrived: for a command with `hold`
POST /v1/sandboxes/{sandbox}/commands/{command}/stdin stdin
    Write to the standard input of a background process. Waits while it does not read.
    ?offset integer position of these bytes in its input: bytes that came before are left out
    ?close boolean close its standard input afterwards
    <application/octet-stream
POST /v1/sandboxes/{sandbox}/commands/{command}/interrupt interrupt_command
    End a command, or keep it from starting.
POST /v1/sandboxes/{sandbox}/terminals open_terminal 201
    Open a terminal. Its program goes on while nobody is attached.
    .argv array|null the program (default: a shell)
    .rows integer rows (default: 24)
    .cols integer columns (default: 80)
    .term string the terminal's type (default: xterm-256color)
    .cwd string|null its directory
    .env object|null variables for it
    .user string|integer|null the user inside
GET /v1/sandboxes/{sandbox}/terminals list_terminals array
    List the terminals.
GET /v1/sandboxes/{sandbox}/terminals/{terminal} get_terminal
    State of a terminal.
DELETE /v1/sandboxes/{sandbox}/terminals/{terminal} close_terminal
    Close a terminal, and hang up its program.
GET /v1/sandboxes/{sandbox}/terminals/{terminal}/output terminal_output application/octet-stream
    Output from an offset on, as for a command.
    ?offset integer position of the first byte (default: 0)
    ?wait number seconds to wait for something new (default: 0; at most 300)
    ?follow boolean stream until the end
POST /v1/sandboxes/{sandbox}/terminals/{terminal}/input terminal_input
    Type bytes.
    ?offset integer position of these bytes in all that was typed here: none is typed twice
    <application/octet-stream
POST /v1/sandboxes/{sandbox}/terminals/{terminal}/size resize
    Set the size.
    .rows integer! rows
    .cols integer! columns
GET /v1/sandboxes/{sandbox}/terminals/{terminal}/attach attach 101 websocket
    Attach by WebSocket. Binary messages are output and keys. Text messages are JSON:
        `{"rows":…,"cols":…}` from you; `{"offset":…}` first, `{"missed":…}` and `{"exit_code":…}` from
        the server.
    ?offset integer continue from this offset (default: all kept output)
GET /v1/sandboxes/{sandbox}/files list_files array
    List a directory.
    ?path string path inside (default: the workspace)
GET /v1/sandboxes/{sandbox}/files/content read_file application/octet-stream
    Content of a file. A `Range` gets a part of it.
    ?path string! path inside, relative to /workspace
PUT /v1/sandboxes/{sandbox}/files/content write_file
    Write a file. Missing directories are made.
    ?path string! path inside, relative to /workspace
    <application/octet-stream
DELETE /v1/sandboxes/{sandbox}/files/content remove_file
    Remove a file or a directory.
    ?path string! path inside, relative to /workspace
    ?recursive boolean with all that is in it
GET /v1/sandboxes/{sandbox}/files/tar download application/x-tar
    A directory as a tar.
    ?path string! path inside, relative to /workspace
PUT /v1/sandboxes/{sandbox}/files/tar upload
    Unpack a tar, all of it or nothing.
    ?path string! path inside, relative to /workspace
    <application/x-tar
GET /v1/sandboxes/{sandbox}/changes changes array
    Changes to the workspace.
    ?everything boolean with the home and /tmp
    ?diff boolean each with its text diff
    ?path string only the change of this path
POST /v1/sandboxes/{sandbox}/review review 201
    What `commit` would do, taken at one moment.
    .paths array|null only these files and directories (default: all)
GET /v1/sandboxes/{sandbox}/reviews/{review}/changes review_changes array
    Changes of a review. Their content is shown only while it is the reviewed content.
    ?diff boolean each with its text diff
    ?path string only the change of this path
POST /v1/sandboxes/{sandbox}/commit commit
    Write the changes to the host, all or none. With `review` exactly the reviewed ones.
    .paths array|null only these files and directories (default: all)
    .on_conflict string refuse (default) or overwrite
    .allow array protected names to accept
    .allow_protected boolean accept all protected names
    .review string id of a review
POST /v1/sandboxes/{sandbox}/discard discard
    Drop changes.
    .paths array|null only these files and directories (default: all)
GET /v1/sandboxes/{sandbox}/snapshots list_snapshots array
    List the snapshots, each with its parent: a tree. `current`: the sandbox continues from it.
POST /v1/sandboxes/{sandbox}/snapshots snapshot 201
    Take a snapshot.
    .label string text
    .processes string none (default), or interpreter: those of `python`
DELETE /v1/sandboxes/{sandbox}/snapshots/{snapshot} delete_snapshot
    Delete a snapshot.
GET /v1/sandboxes/{sandbox}/snapshots/{snapshot}/changes snapshot_changes array
    Changes that lead to a snapshot.
    ?since string! id or label of the other snapshot
    ?diff boolean each with its text diff
    ?path string only the change of this path
POST /v1/sandboxes/{sandbox}/restore restore
    Return to a snapshot, by its id or label.
    .snapshot string! id or label
    .processes string end (default) or keep the background processes
POST /v1/sandboxes/{sandbox}/fork fork 201 array
    Open sandboxes that continue from here.
    .count integer how many (default: 1)
    .snapshot string id or label: continue from this snapshot instead
    .freeze boolean|null see `Sandbox.fork`
GET /v1/sandboxes/{sandbox}/history history array
    List the points of a sandbox created with `history`, one for each command that changed files.
GET /v1/sandboxes/{sandbox}/history/{point}/changes point_changes array
    Changes that lead to a point.
    ?since integer number of the other point (default: the one before)
    ?diff boolean each with its text diff
    ?path string only the change of this path
POST /v1/sandboxes/{sandbox}/undo undo
    Take back the last points. Ends background processes.
    .count integer how many points (default: 1)
POST /v1/sandboxes/{sandbox}/redo redo
    Return to the state before an undo, point by point.
    .count integer how many points (default: 1)
GET /v1/sandboxes/{sandbox}/questions questions array
    Destinations and HTTP requests that wait for an answer.
POST /v1/sandboxes/{sandbox}/questions/{question} answer
    Answer a question: let programs inside connect there, or send the HTTP request; or refuse it.
    .allow boolean! true: allow
    .always boolean also allow equal HTTP requests later (default: false)
"""

#: JSON types of parameters.
_JSON: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


@cache
def types_of(kinds: str) -> frozenset[type]:
    return frozenset(type_of for kind in kinds.split("|") for type_of in _JSON[kind])


class Field(NamedTuple):
    """A parameter: its JSON type ("string|null"), and what it means."""

    type: str
    text: str
    required: bool = False


class Route(NamedTuple):
    """One row. `body` has the fields of a JSON object, or is the media type of bytes."""

    name: str
    method: str
    path: str
    text: str
    query: dict[str, Field]
    body: dict[str, Field] | str
    returns: str
    status: int
    needed: tuple[str, ...]  # required fields of the body

    @property
    def segments(self) -> tuple[str, ...]:
        """The parts of the path; "{name}" matches any."""
        return tuple(self.path[1:].split("/"))


@cache
def routes() -> dict[str, Route]:
    """Return the rows, by name."""
    found: dict[str, Route] = {}
    for block in _TABLE.strip().replace("\n        ", " ").replace("\n    ", "\t").split("\n"):
        head, text, *lines = block.split("\t")
        method, path, name, *more = head.split()
        status = next((int(word) for word in more if word.isdigit()), 200)
        returns = next((word for word in more if not word.isdigit()), "object")
        media = "".join(line[1:] for line in lines if line[0] == "<")
        body = media or _fields(lines, ".")
        needed = () if media else tuple(field for field, each in _fields(lines, ".").items() if each.required)
        found[name] = Route(name, method, path, text, _fields(lines, "?"), body, returns, status, needed)
    return found


def _fields(lines: list[str], mark: str) -> dict[str, Field]:
    words = (line[1:].split(" ", 2) for line in lines if line[0] == mark)
    return {name: Field(kind.rstrip("!"), text, kind.endswith("!")) for name, kind, text in words}


def fields(name: str) -> frozenset[str]:
    """Return the names of the fields of an operation's body."""
    return frozenset(routes()[name].body)
