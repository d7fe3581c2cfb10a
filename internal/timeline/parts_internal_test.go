package timeline

import "testing"

// A text without a name is told once of a call, one that has a name each time, and of the output anew.
func TestManyParts(t *testing.T) {
	c := callText{line: "the line"}
	for _, p := range []struct{ name, text string }{{"name", "one"}, {"name", "one"}, {"", "two"}, {"", " two "}, {"", "line"}} {
		c.addPart(p.name, p.text)
	}
	var cut int64
	if text := c.takeText(&cut); text != "name: one\nname: one\ntwo" || cut != 0 {
		t.Errorf("%q", text)
	}
	if c.addPart("", "two"); c.takeText(&cut) != "two" {
		t.Error("what was told of the input isn't told of the output")
	}
}
