package claude

import (
	"cmp"
	"strings"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/agent/parent"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/hook"
	"code.wake.dev/wake/pkg/wire"
)

// The lines that are written to the program.

type userLine struct {
	Type    string      `json:"type"`
	UUID    string      `json:"uuid"`
	Message userContent `json:"message"`
	Origin  *origin     `json:"wake,omitempty"` // nil: it is a prompt
}

// origin is where a message comes from. The program passes over it; it is for
// readers of the journal.
type origin struct {
	CommandID string `json:"commandId"`
	Answers   string `json:"answers"`
	Notice    bool   `json:"notice"`
}

type userContent struct {
	Role    string   `json:"role"`
	Content wire.Raw `json:"content"`
}

type controlRequest struct {
	Type      string `json:"type"`
	RequestID string `json:"request_id"`
	Request   any    `json:"request"`
}

type controlResponse struct {
	Type     string      `json:"type"`
	Response controlBody `json:"response"`
}

type controlBody struct {
	Subtype   string `json:"subtype"`
	RequestID string `json:"request_id"`
	Response  any    `json:"response,omitempty"`
	Error     string `json:"error,omitempty"`
}

// The ids of wake's own requests.
const (
	initializeID = "wake-initialize"
	interruptID  = "wake-interrupt" // the agent is to stop
	redirectID   = "wake-redirect"  // it is to do something else
)

// hookTimeout bounds, in seconds, how long the program waits for a call to be
// recorded before it is made. It is longer than an agent waits, frozen, for its runner:
// the program counts that time, and would refuse the call in the user's name.
const hookTimeout = 24 * 60 * 60

func newUserLine(uuid string, content wire.Raw, from *origin) userLine {
	return userLine{Type: "user", UUID: uuid, Message: userContent{Role: "user", Content: content}, Origin: from}
}

// initializeRequest asks for a callback before every tool call, and wherever a hook may be asked,
// and offers the parent's MCP server.
func initializeRequest(hooks *hook.Set) controlRequest {
	callbacks := map[string]any{}
	for event, theirs := range hookEvents() {
		if event == flow.HookPreToolUse || hooks.Has(event) {
			callbacks[theirs] = []any{map[string]any{
				"matcher": nil, "hookCallbackIds": []string{theirs}, "timeout": hookTimeout + int(hooks.Limit(event).Seconds()),
			}}
		}
	}
	return controlRequest{Type: "control_request", RequestID: initializeID, Request: map[string]any{
		"subtype": "initialize", "hooks": callbacks, "sdkMcpServers": []string{parent.Server},
	}}
}

func interruptRequest(id string) controlRequest {
	return controlRequest{Type: "control_request", RequestID: id, Request: map[string]any{"subtype": "interrupt"}}
}

func successResponse(id string, response any) controlResponse {
	return controlResponse{Type: "control_response", Response: controlBody{Subtype: "success", RequestID: id, Response: response}}
}

func errorResponse(id, problem string) controlResponse {
	return controlResponse{Type: "control_response", Response: controlBody{Subtype: "error", RequestID: id, Error: problem}}
}

// permissionVerdict is the answer to can_use_tool.
func permissionVerdict(v agent.Verdict, input wire.Raw) map[string]any {
	if !v.Allow {
		note := cmp.Or(v.Note, "denied")
		return map[string]any{"behavior": "deny", "message": note}
	}
	if len(v.UpdatedInput) > 0 {
		input = v.UpdatedInput
	}
	return map[string]any{"behavior": "allow", "updatedInput": input}
}

// serveParent answers a JSON-RPC message to the parent's MCP server. The
// handshake may come twice; notifications get an empty result. A message to the
// parent gets an id.
func serveParent(message wire.Raw, messageID string) map[string]any {
	id := message.Get("id")
	if len(id) == 0 {
		id, _ = wire.Marshal(0)
	}
	reply := map[string]any{"jsonrpc": "2.0", "id": id}
	switch method := message.TextAt("method"); method {
	case "initialize":
		reply["result"] = map[string]any{
			"protocolVersion": protocolVersion(message), "capabilities": map[string]any{"tools": map[string]any{}},
			"serverInfo": map[string]any{"name": parent.Server, "version": "1"},
		}
	case "tools/list":
		reply["result"] = map[string]any{"tools": []any{map[string]any{"name": parent.Tool, "description": parent.Description, "inputSchema": parent.Schema()}}}
	case "tools/call":
		reply["result"] = callParent(message.Get("params"), messageID)
	case "ping", "notifications/initialized", "notifications/cancelled":
		reply["result"] = map[string]any{}
	default:
		reply["error"] = map[string]any{"code": -32601, "message": "method not found: " + method}
	}
	return map[string]any{"mcp_response": reply}
}

func protocolVersion(message wire.Raw) string {
	if v := message.TextAt("params", "protocolVersion"); v != "" {
		return v
	}
	return "2025-06-18"
}

// callParent answers a call of notify_parent; its message is on record.
func callParent(params wire.Raw, id string) map[string]any {
	text, failed := "", true
	p, problem := parent.Parse(params.Get("arguments"))
	switch name := params.TextAt("name"); {
	case name != parent.Tool:
		text = "there is no tool " + name
	case problem != "":
		text = "invalid input: " + problem
	default:
		text, failed = parent.Delivered(p, id), false
	}
	return map[string]any{"content": []any{map[string]any{"type": "text", "text": text}}, "isError": failed}
}

// systemReminder makes a text one that the program's model takes for the system's, not for
// the user's. Workers' words in it can't end it.
func systemReminder(text string) string {
	text = strings.NewReplacer("<system-reminder", "<system_reminder", "</system-reminder", "</system_reminder").Replace(text)
	return "<system-reminder>\n" + text + "\n</system-reminder>"
}

// hookEvents are the events of hooks that the program tells of, and what it calls them. The
// start and the end of the agent are wake's own. A turn is what the agent does from a
// message of the user to its result.
func hookEvents() map[string]string {
	return map[string]string{
		flow.HookPreToolUse: "PreToolUse", flow.HookPostToolUse: "PostToolUse", flow.HookPostToolUseFailure: "PostToolUseFailure",
		flow.HookTurnStart: "UserPromptSubmit", flow.HookTurnEnd: "Stop",
	}
}
