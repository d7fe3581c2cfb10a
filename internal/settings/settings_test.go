package settings_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/settings"
)

var hooks = []settings.Hook{
	{Event: "SessionStart", Command: `'/opt/wake' hooks report '/d/<a & "b">'`, Timeout: 5},
	{Event: "PermissionRequest", Command: "/opt/wake hooks report /d", Timeout: 86400},
}

func isOurs(command string) bool { return strings.Contains(command, "hooks report") }

// texts are settings as people, editors and Claude Code leave them.
var texts = map[string]string{
	"empty object":   `{}`,
	"empty, lines":   "{\n}\n",
	"one line":       `{"model":"opus","permissions":{"allow":["Bash(ls:*)"]}}`,
	"spaces":         "{\n  \"model\": \"opus\",\n  \"env\": {\"A\": \"1\"}\n}\n",
	"four":           "{\n    \"model\": \"opus\"\n}",
	"tabs, CRLF":     "{\r\n\t\"model\": \"opus\"\r\n}\r\n",
	"empty hooks":    "{\n  \"hooks\": {},\n  \"model\": \"opus\"\n}\n",
	"empty list":     "{\n  \"hooks\": {\"SessionStart\": []},\n  \"model\": \"opus\"\n}\n",
	"empty, space":   "{\n  \"hooks\": { },\n  \"model\": \"opus\"\n}\n",
	"other hooks":    "{\n  \"hooks\": {\n    \"Stop\": [\n      {\n        \"matcher\": \"x\",\n        \"hooks\": [{\"type\": \"command\", \"command\": \"say done\"}]\n      }\n    ]\n  },\n  \"model\": \"opus\"\n}\n",
	"same event":     "{\n  \"hooks\": {\n    \"SessionStart\": [\n      {\n        \"hooks\": [\n          {\n            \"type\": \"command\",\n            \"command\": \"echo \\\"}] hi\\\"\"\n          }\n        ]\n      }\n    ]\n  }\n}\n",
	"inline hooks":   `{"hooks":{"PermissionRequest":[{"hooks":[{"type":"http","url":"http://x/\u00e9"}]}]},"a":[1,2.5e3,null,true]}`,
	"odd white":      " {\"a\" :1 ,\n\n\"hooks\"  : {\"Stop\":[ ]}  }  \n\n",
	"unknown shapes": `{"hooks":{"SessionStart":["what", {"hooks":"no list"}, {"hooks":[7]}]}}`,
}

// What is added is there; what is taken out again leaves every byte as it was.
func TestWithoutTrace(t *testing.T) {
	for name, text := range texts {
		t.Run(name, func(t *testing.T) { checkTrace(t, []byte(text)) })
	}
}

func checkTrace(t *testing.T, text []byte) {
	t.Helper()
	with, err := settings.Add(text, hooks)
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(with) {
		t.Fatalf("it isn't JSON any more:\n%s", with)
	}
	found, err := settings.Find(with, isOurs)
	if err != nil || len(found) != len(hooks) {
		t.Fatalf("%d hooks of %d are there (%v):\n%s", len(found), len(hooks), err, with)
	}
	for _, h := range hooks {
		if !cmp.Equal(found[0], h) && !cmp.Equal(found[1], h) {
			t.Errorf("it isn't there: %+v", h)
		}
	}
	without, err := settings.Remove(with, isOurs)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(text), string(without)); diff != "" {
		t.Errorf("what is left behind (-want +got):\n%s\nwith hooks:\n%s", diff, with)
	}
}

// Any settings survive, and what stands beside the hooks isn't touched.
func FuzzTrace(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if bytes.Contains(text, []byte("hooks report")) || len(text) == 0 {
			return
		}
		if _, err := settings.Add(text, hooks); err != nil {
			return
		}
		checkTrace(t, text)
	})
}

// A file that wasn't there is gone again; what others added meanwhile stays, also if they wrote the file anew.
func TestMadeAnew(t *testing.T) {
	made, err := settings.Add(nil, hooks)
	if err != nil || !json.Valid(made) {
		t.Fatalf("%v: %s", err, made)
	}
	if left, err := settings.Remove(made, isOurs); err != nil || left != nil {
		t.Errorf("left of a file of ours: %q, %v", left, err)
	}
	var all map[string]any
	if err := json.Unmarshal(made, &all); err != nil {
		t.Fatal(err)
	}
	all["model"] = "opus"
	rewritten, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	left, err := settings.Remove(rewritten, isOurs)
	if want := "{\n  \"model\": \"opus\"\n}"; err != nil || string(left) != want {
		t.Errorf("left is %q, %v; want %q", left, err, want)
	}
}

// What can't be changed safely isn't, and says why.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ text, says string }{
		"comment":  {"{\n  // mine\n  \"a\": 1\n}", "line 2 has a comment"},
		"trailing": {"{\n  \"a\": 1,\n}", "line 3 isn't JSON"},
		"empty":    {"", "isn't JSON"},
		"list":     {"[]", "it is no object"},
		"bom":      {"\ufeff{}", "isn't JSON"},
		"two":      {`{} {}`, "isn't JSON"},
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := settings.Load(file); err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "nothing is written") {
			t.Errorf("%s: %v; want %q", name, err, c.says)
		}
	}
	for _, text := range []string{`{"hooks":[]}`, `{"hooks":{"SessionStart":{}}}`, `{"hooks":{},"hooks":{}}`} {
		if got, err := settings.Add([]byte(text), hooks); err == nil {
			t.Errorf("%s becomes %s", text, got)
		}
	}
	file := filepath.Join(dir, "settings.json")
	if err := os.WriteFile(file, []byte("{}"), 0o400); err != nil {
		t.Fatal(err)
	}
	if _, err := settings.Load(file); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("read-only: %v", err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if _, err := settings.Load(link); err == nil || !strings.Contains(err.Error(), "is a link to "+file) {
		t.Errorf("a link: %v", err)
	}
}

// What another program wrote since it was read isn't written over, and the file keeps its mode.
func TestSave(t *testing.T) {
	file := filepath.Join(t.TempDir(), "settings.json")
	if err := os.WriteFile(file, []byte("{}"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := settings.Save(file, []byte("{ }"), []byte(`{"a":1}`)); err == nil || !strings.Contains(err.Error(), "meanwhile") {
		t.Errorf("it was changed: %v", err)
	}
	if err := settings.Save(file, []byte("{}"), []byte(`{"a":1}`)); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
	if err := settings.Save(file, []byte(`{"a":1}`), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("it is there: %v", err)
	}
}
