package kill_test

import (
	"encoding/json"
	"testing"
)

// A command is done once a call has it, whatever is in it and however the API writes it.
func TestCommandIsDone(t *testing.T) {
	const command = `echo "a\b" > 'x & y'`
	inner := string(mustMarshal(map[string]any{"cmd": command}))
	for name, input := range map[string]any{
		"an object": map[string]any{"command": command}, "a text": inner, "argv": map[string]any{"command": []string{"sh", "-c", command}},
	} {
		c := conversation{tools: []string{"Bash"}}
		c.addText("Do it.\n$ " + command)
		if line, next := c.next(); next == nil || line != "$ "+command {
			t.Fatalf("%s: the next line is %q", name, line)
		}
		c.addCall("Bash", json.RawMessage(mustMarshal(input)))
		if line, next := c.next(); next != nil {
			t.Errorf("%s: %q is next again", name, line)
		}
	}
}
