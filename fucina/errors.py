"""Every error that fucina raises on purpose, one class a cause.

All derive from `FucinaError`; those that a caller would expect to be a ValueError, an IndexError or an OSError
derive from that as well.  Messages say what was wrong and what was expected.
"""


class FucinaError(Exception):
    """Base of every error raised on purpose by fucina."""


# --- files and models -------------------------------------------------------------------------------------------


class GgufError(FucinaError, ValueError):
    """A file is not a readable GGUF: the message names the field, what was found and what was expected."""


class BlockFormatError(GgufError):
    """Rows do not fit a tensor format: unknown or unsupported format, wrong dtype or width, values it cannot hold."""


class GgufIncomplete(GgufError):
    """A file ends before its header or its tensors do, as after an interrupted download; the message names both sizes."""


class GgufOpenError(GgufError, OSError):
    """A path cannot be opened as a GGUF at all: missing, a folder, not a regular file, not permitted, a part missing."""


class ModelError(FucinaError, ValueError):
    """A GGUF is readable but does not hold a model that this engine can run (tensor missing, wrong shape, …)."""


class UnsupportedArchitecture(ModelError):
    """`general.architecture` names a family that is not in the registry."""


class ConvertError(FucinaError, ValueError):
    """A model's files cannot be converted: something is missing, not known, or would change what is computed."""


class SafetensorsError(ConvertError):
    """A file is not a readable safetensors file, or files and their index contradict each other."""


class ModelNotFound(FucinaError, OSError):
    """A model name is unknown, or a known model is not installed and cannot be fetched."""


class HashMismatch(FucinaError, ValueError):
    """A file that was joined or fetched is not the one it should be: size or SHA-256 differ."""


class UnsupportedTokenizerFormat(FucinaError, ValueError):
    """The tokenizer metadata of a GGUF is missing, contradictory or of a kind that is not implemented."""


class NoTokenizerVocab(UnsupportedTokenizerFormat):
    """A GGUF has no vocabulary: `tokenizer.ggml.tokens` is missing or empty."""


class InvalidText(FucinaError, ValueError):
    """A text holds an unpaired surrogate, so that it is no Unicode text and has no UTF-8 bytes."""


# --- slot pool --------------------------------------------------------------------------------------------------


class PoolClosed(FucinaError, RuntimeError):
    """A slot pool is used after `close`."""


class SlotReleased(FucinaError, RuntimeError):
    """A slot is used, released or discarded after it was given back."""


# --- forward passes ---------------------------------------------------------------------------------------------


class TokenOutOfRange(FucinaError, ValueError):
    """A token id is not in [0, vocab)."""


class EmptyInput(FucinaError, ValueError):
    """A pass was asked for with no token at all."""


class TooShort(FucinaError, ValueError):
    """A text has fewer tokens than a measurement needs."""


class KvCacheOverflow(FucinaError, ValueError):
    """Rows would be written past a cache's capacity."""


class KvCacheShapeMismatch(FucinaError, ValueError):
    """K/V rows, or another cache, do not have this cache's geometry; or the cache belongs to another model."""


class DuplicateCache(FucinaError, ValueError):
    """Two entries of one pass name the same cache."""


class CannotRewind(FucinaError, ValueError):
    """A state was asked to go back to a number of positions that it cannot go back to."""


class NoOpenPass(FucinaError, RuntimeError):
    """Rows of a state were committed, or their place was asked for, without `begin` before."""


# --- files of rows ------------------------------------------------------------------------------------------------


class KvFileError(FucinaError, OSError):
    """A file of rows cannot be opened, read or written; the message has the path and the system's reason."""


class KvFileLocked(KvFileError):
    """A file of rows is being written by somebody else: another object, thread or process."""


class KvFileInvalid(FucinaError, ValueError):
    """A file is no file of rows, its header is damaged, or it cannot hold what should be stored in it."""


class KvPersistTokenMismatch(FucinaError, ValueError):
    """Tokens that should be stored beside rows are not as many as the rows, or are no token ids."""


# --- sampling ---------------------------------------------------------------------------------------------------


class InvalidLogits(FucinaError, ValueError):
    """What a sampler was given is not one non-empty row of numbers."""


class InvalidSamplerOption(FucinaError, ValueError):
    """A sampling setting is not finite or out of its range; the message names the field."""


class NonFiniteLogits(FucinaError, ValueError):
    """A logits row holds NaN or +inf, so that no choice would mean anything."""


class AllTokensMasked(FucinaError, ValueError):
    """No token is left to choose: every logit is -inf."""


# --- chat -------------------------------------------------------------------------------------------------------


class BatchLengthMismatch(FucinaError, ValueError):
    """Lists that describe the streams of a batch do not have one entry per stream."""


class ChatTemplateError(FucinaError, ValueError):
    """A chat template is missing, does not compile, or refuses these messages."""


class ConversationClosed(FucinaError, RuntimeError):
    """A conversation was used whose cache was taken away."""


class DuplicateBatchConversation(FucinaError, ValueError):
    """One conversation appears twice in a batch."""


class EmptyBatch(FucinaError, ValueError):
    """A batch has no conversation."""


class EmptyMessages(ChatTemplateError):
    """There is nothing to answer: no message, or a prompt without tokens."""


class InvalidPrefix(FucinaError, ValueError):
    """Rows cannot be declared a preloaded prefix: the conversation has begun, or the cache holds another number of them."""


class MixedBatchModels(FucinaError, ValueError):
    """Conversations of a batch belong to different models."""


class NoSuchTurn(FucinaError, ValueError):
    """A turn should be undone or made again that the conversation does not have."""


class NotASavedText(FucinaError, ValueError):
    """A file that a text should be stored in holds a conversation."""


class NotASavedConversation(FucinaError, ValueError):
    """A file that a conversation should go on from holds something else, or nothing of it can be read."""


class SharedBatchProcessor(FucinaError, ValueError):
    """Two streams of a batch share a logit processor, which is one stream's state."""


class SystemMidConversation(ChatTemplateError):
    """A system message comes after others, where the chat format takes it at the beginning only."""


class SystemMismatch(FucinaError, ValueError):
    """A conversation was opened from a file with another system message than the file's; the message has both."""


class TrailingAssistantMessage(ChatTemplateError):
    """A conversation ends with an assistant's tool calls, whose results are missing."""


class UnknownMessages(FucinaError, ValueError):
    """A template that renders whole conversations is asked to continue one whose messages are not known."""


# --- grammars -----------------------------------------------------------------------------------------------------


class InvalidGrammar(FucinaError, ValueError):
    """A schema, regex or grammar cannot be compiled; the message says where and why."""


class UnsatisfiableGrammar(InvalidGrammar):
    """No text satisfies a grammar: an empty interval, `false`, a rule that leads back to itself with no way out."""


class UnsupportedKeyword(InvalidGrammar):
    """A schema asks for something that is not enforced; the message names it.  Nothing is left out in silence."""


class GrammarTooLarge(InvalidGrammar):
    """A grammar is larger or more deeply nested than its limits of time and memory allow."""


class LlguidanceNotEnabled(FucinaError, ImportError):
    """Grammars need the package llguidance, which is not installed; the message has the command that installs it."""


class MatcherFailed(FucinaError, RuntimeError):
    """A grammar's matcher cannot go on in the middle of a text: a dead end, a limit, a token that was not allowed."""


class NoEosToken(FucinaError, ValueError):
    """A vocabulary has no token that ends a text, so that a finished grammar could not end its reply."""


# --- generation -------------------------------------------------------------------------------------------------


class ContextFull(FucinaError, ValueError):
    """The prompt does not fit in the context; nothing was changed."""


class InvalidOption(FucinaError, ValueError):
    """An argument is out of its range; the message names it, its value and the range."""


class ReentrantForward(FucinaError, RuntimeError):
    """A pass was started from inside a pass of the same model (by a function that overrides an op, or a host stage)."""


# --- speculative decoding ----------------------------------------------------------------------------------------


class CostTableEmpty(FucinaError, ValueError):
    """A table of verify costs has no point to interpolate from."""


class IndexDegraded(FucinaError, RuntimeError):
    """Tokens were given to a suffix index of which an earlier append failed; it answers nothing any more."""


class IndexFrozen(FucinaError, RuntimeError):
    """Tokens were given to a frozen suffix index, or a cursor was asked of one that may still grow."""


class InvalidDraft(FucinaError, TypeError):
    """A draft source returned something that is no draft, or odds that are no numbers."""


class InvalidDecodeState(FucinaError, ValueError):
    """A stream has no token, or its state holds fewer rows than the stream's prefix."""


class ProbeStepsZero(FucinaError, ValueError):
    """A cost gate was set up to probe with no step at all."""


class RateWindowTooSmall(FucinaError, ValueError):
    """A cost gate was given a window of fewer than 2 verifies, too few to judge by."""


class ReferencesUnsupported(FucinaError, ValueError):
    """Documents to quote were given to a draft source that takes none."""


class ReprobeAfterZero(FucinaError, ValueError):
    """A cost gate was set up to wait no step at all before it probes again."""


class SharedStream(FucinaError, ValueError):
    """Two streams of a batch share what belongs to one stream: a cache, sampler, processor, decoder or draft source."""


class SpeculationDisabled(FucinaError, ValueError):
    """Something was asked of the speculation of a conversation that decodes plainly."""


class StreamTooLong(FucinaError, ValueError):
    """More tokens were given to a suffix index than it can number."""


class TopKFeedbackDisabled(FucinaError, ValueError):
    """A draft source wants the best tokens of verified rows, and the options ask for none of them."""


# --- kernels ----------------------------------------------------------------------------------------------------


class IsaError(FucinaError, ValueError):
    """An instruction set was asked for that is unknown or that this CPU does not have."""


class KernelArgumentError(FucinaError, ValueError):
    """Arrays given to a kernel do not fit it: shape, dtype, alignment or a size that the format cannot hold."""


class UnknownKernel(FucinaError, ValueError):
    """No kernel has this name."""


# --- the compiled engine ------------------------------------------------------------------------------------------


class EngineClosed(FucinaError, RuntimeError):
    """A pass was asked for from a model that was closed."""


# --- server -----------------------------------------------------------------------------------------------------


class ModelTooLarge(FucinaError, ValueError):
    """The weights of a model take more memory than all models of a server together may."""


class QueueFull(FucinaError, RuntimeError):
    """As many requests wait as may wait."""


class RequestTooLarge(FucinaError, ValueError):
    """A request whose rows do not fit in the memory of the server, even if it has that for itself."""


class ServerNotEnabled(FucinaError, ImportError):
    """The server needs packages that are not installed; the message has the command that installs them."""


class ClusterNotEnabled(FucinaError, ImportError):
    """A cluster needs packages that are not installed; the message has the command that installs them."""


class ClusterFailed(FucinaError, RuntimeError):
    """Ray does not start, cannot be reached or does not bring replicas up; the message has what it says."""


class InvalidTrace(FucinaError, ValueError):
    """A trace of requests cannot be read; the message names the line, and what was expected."""


class ShuttingDown(FucinaError, RuntimeError):
    """The server ends: it takes no new request, and those that were not complete in time end with this."""


# --- measuring --------------------------------------------------------------------------------------------------


class PeerNotFound(FucinaError, OSError):
    """The engine to compare with is not installed where it was looked for."""


class ResultsError(FucinaError, ValueError):
    """A file of results does not have the shape that was expected, or samples do not pair up."""


class WorkerFailed(FucinaError, RuntimeError):
    """A process under measurement ended, or could not answer; the message holds its last lines."""
