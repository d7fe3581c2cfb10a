package console_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Where the file of users names no operator, none of them can sign a link that answers for the console.
func TestViewerSignsNoLink(t *testing.T) {
	w := newWorld(t)
	const token = "viewers-own-token-0123"
	w.config.Users = filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(w.config.Users, []byte("eve viewer "+token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.serveConsole()
	w.token = token
	_, agent := w.write("r", "hello")
	a := w.asks("r", agent, "c1", time.Now())
	// As eve: all of this she knows, or reads in the run's events.
	m := hmac.New(sha256.New, []byte(token))
	m.Write([]byte("links"))
	secret := []byte(base64.RawURLEncoding.EncodeToString(m.Sum(nil)))
	b := binary.BigEndian.AppendUint64(nil, uint64(time.Now().Add(time.Hour).Unix()))
	b = append(binary.BigEndian.AppendUint64(b, a.Position.Seq), "r"...)
	m = hmac.New(sha256.New, secret)
	m.Write([]byte("answer\x00" + a.Position.Incarnation + "\x00"))
	m.Write(b)
	link := "/answer/" + base64.RawURLEncoding.EncodeToString(append(m.Sum(nil), b...))
	if status, text := w.ask(http.MethodPost, "/runs/r/command", "type=approve&node=coder&call=c1", nil); status != http.StatusForbidden {
		t.Errorf("a viewer's command: %d %s", status, text)
	}
	w.get("/parts/inbox?run=r", "make deploy of r")
	status, text := w.ask(http.MethodPost, link, "type=approve", nil)
	if n, last := w.givenCommands(); n != 0 {
		t.Errorf("a viewer's forged link gave %d commands (%s %s by %s): %d %s", n, last.Type, last.CallID, last.By, status, text)
	}
}
