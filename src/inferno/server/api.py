"""What plugins may import of the server: the parts that endpoints in the shape of another API are
made of. The server's other modules may change in any release.

A handler (`post_body`) is given its body (`Parsed`) and the `Models`. It turns the body into a chat
request (`Translation`) or a text completion (`CompletionRequest`, `prepare_text`), and its model's
`pipeline.respond(prepared, shape, receive)` writes the answer by a `Shape` of the API's own.
"""

from __future__ import annotations

from inferno.llm.pooling import Recipe
from inferno.llm.weights import weights_file
from inferno.request.sampling_params import Parameter, parameters
from inferno.server.access.keys import admin_only
from inferno.server.chat.conversation import Conversation, ParsedChoice, arguments_object
from inferno.server.chat.translate import (
    Translation,
    base64_image,
    function_call,
    function_tool,
    image_part,
    named_function,
    session_of,
    text_of,
)
from inferno.server.fields.parameters import sampling_fields
from inferno.server.fields.schema import (
    ERROR_RESPONSES,
    CompletionRequest,
    ErrorBody,
    Message,
    TokenizeRequest,
)
from inferno.server.fields.support import Field, honoured, sampling_rows
from inferno.server.generate.generation import Prepared
from inferno.server.generate.shape import Choice, Shape, encode
from inferno.server.hosting.describe import Description
from inferno.server.hosting.hosted_model import HostedModel
from inferno.server.hosting.models import Models
from inferno.server.hosting.served_model import ServedModel, in_time
from inferno.server.http.apis import Api, ModelCards
from inferno.server.http.errors import body as error_body
from inferno.server.http.errors import log, shorten
from inferno.server.http.parsing import Parsed, post_body, read
from inferno.server.observe.record import current as current_record
from inferno.server.observe.record import request_id_of
from inferno.server.openai import logprobs
from inferno.server.openai.completions import prepare_text
from inferno.server.pooling.embeddings import ONE_TOKEN, encode_inputs
from inferno.server.pooling.shape import Pooled, WholeShape, blaming
from inferno.server.routes import usable_models

__all__ = [
    "ERROR_RESPONSES",
    "ONE_TOKEN",
    "Api",
    "Choice",
    "CompletionRequest",
    "Conversation",
    "Description",
    "ErrorBody",
    "Field",
    "HostedModel",
    "Message",
    "ModelCards",
    "Models",
    "Parameter",
    "Parsed",
    "ParsedChoice",
    "Pooled",
    "Prepared",
    "Recipe",
    "ServedModel",
    "Shape",
    "TokenizeRequest",
    "Translation",
    "WholeShape",
    "admin_only",
    "arguments_object",
    "blaming",
    "base64_image",
    "current_record",
    "encode",
    "encode_inputs",
    "error_body",
    "function_call",
    "function_tool",
    "honoured",
    "image_part",
    "in_time",
    "log",
    "logprobs",
    "named_function",
    "parameters",
    "post_body",
    "prepare_text",
    "read",
    "request_id_of",
    "sampling_fields",
    "sampling_rows",
    "session_of",
    "shorten",
    "text_of",
    "usable_models",
    "weights_file",
]
