//go:build browser

package browser_test

import "strings"

// evil is what an agent may write anywhere.
const evil = `<script>document.title='owned'</script><img src=http://evil.invalid/x onerror=\"document.title='owned'\"></title></textarea><svg onload=document.title='owned'>\u001b[31mred\u001b[0m\u001b]0;owned\u0007 \u202egpj.exe [x](javascript:document.title='owned')`

// patience is what an agent says, once a second, while it waits.
var patience = strings.Repeat(`{"type": "agent:text", "content": "still waiting"}, `, 240) + `{"type": "agent:text", "content": "that was long"}`

// files are flows and their recorded agents.
var files = map[string]string{
	"deploy.yaml": "name: deploy\nnodes:\n  - {id: coder, type: agent, input: {prompt: \"Deploy.\"}}\n",
	"evil.yaml":   "name: evil\nnodes:\n  - {id: coder, type: agent, input: {prompt: \"Be evil.\"}}\n",
	"steps.yaml": `name: steps
nodes:
  - {id: a, type: exec, input: {command: "printf 'one\ntwo\n' > a; printf '<img src=x onerror=alert(1)>' > '<b>evil.html'"}}
  - {id: b, type: exec, input: {command: "printf 'one\n2\nthree\n' > a; mkdir d; printf 'deep\n' > d/b; ln -s a l; rm '<b>evil.html'"}}
edges: [{from: a, to: b}]
`,
	"fixtures/coder.json": `{"calls": [{"delayMs": 1000, "output": {"text": "deployed"}, "events": [
  {"type": "tool:intent", "callId": "toolu_deploy", "toolName": "Bash", "toolInput": {"command": "make deploy"}},
  {"type": "permission:required", "callId": "toolu_deploy", "toolName": "Bash", "toolInput": {"command": "make deploy"}},
  ` + patience + `]}]}`,
	"evil/coder.json": `{"calls": [{"delayMs": 1000, "output": {"text": "done"}, "events": [
  {"type": "agent:text", "content": "` + evil + `"},
  {"type": "agent:tool", "callId": "c1", "toolName": "<b>Bash", "toolInput": {"command": "` + evil + `"}, "toolOutput": "` + evil + `", "error": "` + evil + `"},
  {"type": "tool:intent", "callId": "` + evil + `", "toolName": "Bash", "toolInput": {"command": "` + evil + `"}},
  {"type": "permission:required", "callId": "` + evil + `", "toolName": "Bash", "toolInput": {"command": "` + evil + `"}, "description": "` + evil + `"},
  ` + patience + `]}]}`,
}
