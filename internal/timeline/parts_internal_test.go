package timeline

import "testing"

// A text is told once of a call, under whichever name it comes first.
func TestManyParts(t *testing.T) {
	c := callText{line: "the line"}
	for _, part := range []string{"one", "two", "one", "line", " two "} {
		c.addPart("name", part)
	}
	var cut int64
	if text := c.takeText(&cut); text != "name: one\nname: two" || cut != 0 {
		t.Errorf("%q", text)
	}
	if c.addPart("", "one"); c.takeText(&cut) != "one" {
		t.Error("what was told of the input isn't told of the output")
	}
}
