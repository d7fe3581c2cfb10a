package claude

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"code.wake.dev/wake/pkg/wire"
)

// What the program writes as the result of a call that it was interrupted in, or that lost its
// host before the answer, in the name of a user that has said nothing: the words of
// 2.1.197, 2.1.329 and 2.1.330. All but the last may be followed by more, such as a
// correction that the call may have run all the same.
const (
	rejectedCall  = "The user doesn't want to proceed with this tool use."
	rejectedStop  = rejectedCall + " The tool use was rejected (eg. if it was a file edit, the new_string was NOT written to the file). STOP what you are doing and wait for the user to tell you how to proceed."
	cancelledCall = "The user doesn't want to take this action right now. STOP what you are doing and wait for the user to tell you how to proceed."
	rejectedChild = rejectedCall + " The tool use was rejected (eg. if it was a file edit, the new_string was NOT written to the file)." // to a sub-agent
)

// unrecorded is what 2.1.329 writes for a call without a result in its session.
const unrecorded = "[Tool call interrupted: the session ended before this call's result was recorded, so its outcome is unknown. " +
	"Check whether it took effect before relying on it or running it again.]"

// isRejection recognises the words for a refusal by a human, which are also those
// for a call that was interrupted while it ran.
func isRejection(message string) bool { return strings.HasPrefix(message, rejectedCall) }

// isFeigned recognises a refusal that may be the program's own. A user that does refuse is quoted.
func isFeigned(message string) bool {
	return strings.HasPrefix(message, rejectedStop) || strings.HasPrefix(message, cancelledCall) || message == rejectedChild
}

// isMissingResult recognises what the program writes where it has no result.
func isMissingResult(message string) bool {
	return hasAnyPrefix(message, "[Tool call interrupted: ", "[Agent call interrupted: ", "[Tool result missing ", "[Tool call result not in this copy: ")
}

// isCutOff reports whether the error of a call says that it was interrupted, not that it failed
// or was refused. In a stream of ours, a refusal is on record before the result is; in a
// foreign one, a refusal of what the program asked about isn't.
func (n *Normalizer) isCutOff(id string, c *toolCall, message string) bool {
	switch {
	case c.executing && isRejection(message):
		return true
	case n.denied[id]:
		return false
	case n.opt.Format == Transcript, n.asked[id] && !n.opt.Started:
		return isMissingResult(message)
	}
	return isMissingResult(message) || isFeigned(message)
}

// limitOver is when the limit is over because of which the program gave up; 0 if it doesn't say, or failed for another reason.
func (n *Normalizer) limitOver(errorType string) int64 {
	if errorType != wire.ErrorRateLimit || n.limit <= n.at {
		return 0
	}
	return n.limit
}

// correctRefusals returns a session file in which refusals that the program made up say what is true
// of them: that the outcome of the call is unknown. The program forgets a call if its result is
// missing, and what stands before a missing line. denied are calls that a decision refused.
func correctRefusals(content []byte, denied []string) []byte {
	if !bytes.Contains(content, []byte("The user doesn't want to ")) {
		return content
	}
	said, err := json.Marshal(unrecorded)
	if err != nil {
		return content
	}
	var out bytes.Buffer
	for line := range bytes.Lines(content) {
		var m struct {
			Message struct {
				Content []resultBlock `json:"content"`
			} `json:"message"`
		}
		if json.Unmarshal(line, &m) == nil {
			for _, r := range m.Message.Content {
				raw, text := r.rawText()
				if r.Type == "tool_result" && r.IsError && isFeigned(text) && !slices.Contains(denied, r.ToolUseID) {
					line = bytes.ReplaceAll(line, raw, said)
				}
			}
		}
		out.Write(line)
	}
	return out.Bytes()
}

// resultBlock is a block of a message that may have the result of a call.
type resultBlock struct {
	Type      string          `json:"type"`
	ToolUseID string          `json:"tool_use_id"`
	IsError   bool            `json:"is_error"`
	Content   json.RawMessage `json:"content"`
}

// rawText returns the text of a result as it stands in its line, and what it says: "" if it isn't
// one text.
func (r resultBlock) rawText() (raw []byte, text string) {
	var blocks []struct {
		Text json.RawMessage `json:"text"`
	}
	raw = r.Content
	if json.Unmarshal(raw, &blocks) == nil && len(blocks) == 1 {
		raw = blocks[0].Text
	}
	if json.Unmarshal(raw, &text) != nil {
		return nil, ""
	}
	return raw, text
}
