package export

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"code.wake.dev/wake/internal/chain"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/pkg/wire"
)

// The lines of a JSONL file. The first is a head, the last a tail; in between
// each is an event, or a large field of the event that follows.
//
//	{"wake":1,"run":"r1","incarnation":"…"}
//	{"blob":"<sha256>","data":"<base64>"}
//	{"pos":17,"time":1767400000000,"hash":"<h>","event":{"v":1,…}}
//	{"end":true,"events":1,"hash":"<h>"}
//
// An event has its bytes too, as data, if its JSON doesn't lead back to them. A large field that the object store has
// lost says "missing": true in the place of its data, so that a line that was lost later is noticed.
type head struct {
	Wake        int    `json:"wake"` // version of the file
	Run         string `json:"run"`
	Incarnation string `json:"incarnation"`
	From        uint64 `json:"from,omitempty"`
	To          uint64 `json:"to,omitempty"`
}

// fileVersion is the version of the file that this package writes and reads.
const fileVersion = 1

type exportTail struct {
	End    bool   `json:"end"`
	Events int    `json:"events"`
	Hash   string `json:"hash"`
}

// JSONL writes the events as they are stored, one per line, with the hash chain.
// Large fields come along.
func JSONL(w io.Writer, run Run, events Events, fetch Fetch) (Result, error) {
	out := bufio.NewWriter(w)
	r := Result{RunID: run.ID}
	j := jsonl{out: out, fetch: fetch, result: &r, last: chain.FirstLink(run.Incarnation, run.ID)}
	if err := j.writeValue(head{fileVersion, run.ID, run.Incarnation, run.From, run.To}); err != nil {
		return r, err
	}
	if err := eachStored(&r, events, j.writeEntry); err != nil {
		return r, err
	}
	r.Hash = j.last.String()
	if err := j.writeValue(exportTail{true, r.Events, r.Hash}); err != nil {
		return r, err
	}
	r.Written = r.Events
	return r, out.Flush()
}

type jsonl struct {
	out    *bufio.Writer
	fetch  Fetch
	result *Result
	chain  chain.Linker
	last   chain.Link
	buf    []byte
}

func (j *jsonl) writeValue(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = j.out.Write(append(line, '\n'))
	return err
}

func (j *jsonl) writeEntry(e *eventlog.Entry) error {
	for _, b := range e.Event.Blobs {
		if err := j.writeBlob(b.SHA256); err != nil {
			return err
		}
	}
	at := e.Time.UnixMilli()
	j.last = j.chain.Next(j.last, e.Pos, at, "", "", e.Data)
	b := append(j.buf[:0], `{"pos":`...)
	b = strconv.AppendUint(b, e.Pos, 10)
	b = append(b, `,"time":`...)
	b = strconv.AppendInt(b, at, 10)
	b = append(b, `,"hash":"`...)
	b = hex.AppendEncode(b, j.last[:])
	b = append(b, `","event":`...)
	start := len(b)
	b, err := wire.AppendJSON(b, e.Data)
	if err != nil {
		return fmt.Errorf("position %d: %w", e.Pos, err)
	}
	if !leadsTo(b[start:], e.Data) {
		b = append(b, `,"data":"`...)
		b = base64.StdEncoding.AppendEncode(b, e.Data)
		b = append(b, '"')
	}
	j.buf = append(b, '}', '\n')
	_, err = j.out.Write(j.buf)
	return err
}

// leadsTo reports whether an event in JSON is encoded as data.
func leadsTo(event, data []byte) bool {
	back, err := encodeFromJSON(event)
	return err == nil && bytes.Equal(back, data)
}

func encodeFromJSON(event []byte) ([]byte, error) {
	e, err := wire.DecodeJSON(event)
	if err != nil {
		return nil, err
	}
	return wire.Encode(e)
}

func (j *jsonl) writeBlob(sum string) error {
	data, err := j.fetch(sum)
	if errors.Is(err, eventlog.ErrBlobMissing) {
		j.result.Missing++
		return j.writeValue(blobLine{Blob: sum, Missing: true})
	}
	if err != nil {
		return err
	}
	return j.writeValue(blobLine{Blob: sum, Data: data})
}

type blobLine struct {
	Blob    string `json:"blob"`
	Data    []byte `json:"data,omitempty"`
	Missing bool   `json:"missing,omitempty"`
}
