//go:build linux

package sim_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"code.wake.dev/wake/internal/run"
	"code.wake.dev/wake/pkg/wire"
)

// bug is what a defective client sends instead of a message. It is called under the
// lock of the link.
type bug func(c *conn, m message) []message

// rebuilt returns a message with other headers or data.
func rebuilt(m message, subject string, headers, data []byte) message {
	reply := m.reply
	if reply != "" {
		reply += " "
	}
	var raw []byte
	if len(headers) > 0 {
		raw = fmt.Appendf(nil, "HPUB %s %s%d %d\r\n", subject, reply, len(headers), len(headers)+len(data))
	} else {
		raw = fmt.Appendf(nil, "PUB %s %s%d\r\n", subject, reply, len(data))
	}
	raw = append(append(append(raw, headers...), data...), crlf...)
	return message{raw: raw, subject: subject, reply: m.reply, headers: headers, data: data}
}

// without removes headers.
func without(m message, names ...string) message {
	var kept []string
	for line := range strings.SplitSeq(string(m.headers), "\r\n") {
		if !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(line, n) }) {
			kept = append(kept, line)
		}
	}
	if len(kept) == 3 && kept[1] == "" { // nothing but the version is left
		return rebuilt(m, m.subject, nil, m.data)
	}
	return rebuilt(m, m.subject, []byte(strings.Join(kept, "\r\n")), m.data)
}

func isEvent(m message) bool { return strings.HasPrefix(m.subject, "wake.events.") }

// unfenced writes without an expectation.
func unfenced(_ *conn, m message) []message {
	if !isEvent(m) {
		return []message{m}
	}
	return []message{without(m, "Nats-Expected-Last-Subject-Sequence")}
}

// stubborn sends single events twice, the second time without an expectation.
func stubborn(_ *conn, m message) []message {
	if !isEvent(m) || m.header("Nats-Batch-Id") != "" || rand.IntN(20) > 0 {
		return []message{m}
	}
	return []message{m, without(m, "Nats-Expected-Last-Subject-Sequence")}
}

// liar acknowledges an event now and then that it doesn't send.
func liar(c *conn, m message) []message {
	if !isEvent(m) || m.header("Nats-Batch-Id") != "" || m.reply == "" || rand.IntN(30) > 0 {
		return []message{m}
	}
	c.link.expect(m)
	ack := fmt.Appendf(nil, `{"stream":"WAKE_EVENTS","seq":%d}`, 1<<20)
	answer := message{raw: fmt.Appendf(nil, "MSG %s 1 %d\r\n%s\r\n", m.reply, len(ack), ack), subject: m.reply, data: ack}
	c.in.pushMessage(answer, time.Time{})
	return nil
}

// shifter saves snapshots under the position behind theirs.
func shifter(_ *conn, m message) []message {
	if !strings.HasPrefix(m.subject, "$KV.WAKE_SNAPSHOTS.") {
		return []message{m}
	}
	s, err := run.Decode(m.data)
	if err != nil {
		return []message{m}
	}
	s.Position.Seq++
	data, err := wire.Marshal(s)
	if err != nil {
		return []message{m}
	}
	return []message{rebuilt(m, m.subject, m.headers, data)}
}

// corrupter counts one event too few in snapshots.
func corrupter(_ *conn, m message) []message {
	if !strings.HasPrefix(m.subject, "$KV.WAKE_SNAPSHOTS.") {
		return []message{m}
	}
	s, err := run.Decode(m.data)
	if err != nil {
		return []message{m}
	}
	s.EventCount--
	data, err := wire.Marshal(s)
	if err != nil {
		return []message{m}
	}
	return []message{rebuilt(m, m.subject, m.headers, data)}
}

// noisy publishes alerts under random keys, each twice.
func noisy(_ *conn, m message) []message {
	if !strings.HasPrefix(m.subject, "wake.alerts.") {
		return []message{m}
	}
	return []message{m, rebuilt(m, fmt.Sprintf("%s-%x", m.subject, binary.LittleEndian.AppendUint32(nil, rand.Uint32())), m.headers, m.data)}
}

// mute loses alerts, and says that they are stored.
func mute(c *conn, m message) []message {
	if !strings.HasPrefix(m.subject, "wake.alerts.") {
		return []message{m}
	}
	ack := []byte(`{"stream":"WAKE_ALERTS","seq":1}`)
	c.in.pushMessage(message{raw: fmt.Appendf(nil, "MSG %s 1 %d\r\n%s\r\n", m.reply, len(ack), ack), subject: m.reply, data: ack}, time.Time{})
	return nil
}

// secretive loses dead letters, and says that they are stored.
func secretive(c *conn, m message) []message {
	if !strings.HasPrefix(m.subject, "wake.deadletter.") {
		return []message{m}
	}
	ack := []byte(`{"stream":"WAKE_DEADLETTER","seq":1}`)
	c.in.pushMessage(message{raw: fmt.Appendf(nil, "MSG %s 1 %d\r\n%s\r\n", m.reply, len(ack), ack), subject: m.reply, data: ack}, time.Time{})
	return nil
}

// misdirected writes text under the name of another run.
func misdirected(_ *conn, m message) []message {
	if !isEvent(m) || m.header("Nats-Batch-Id") != "" || !strings.HasSuffix(m.subject, ".delta") {
		return []message{m}
	}
	other := strings.Replace(m.subject, "wake.events.", "wake.events.other-", 1)
	return []message{rebuilt(without(m, "Nats-Expected-Last-Subject-Sequence"), other, nil, m.data)}
}

// leaseless deletes what it should renew.
func leaseless(_ *conn, m message) []message {
	if !strings.HasPrefix(m.subject, "$KV.WAKE_LEASES.") {
		return []message{m}
	}
	return []message{rebuilt(m, m.subject, []byte("NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"), nil)}
}

// keepsRegistered leaves it on record that a run goes on when it has ended.
func keepsRegistered(c *conn, m message) []message {
	if !strings.HasPrefix(m.subject, "$KV.WAKE_STATE.runner.") || !bytes.Contains(m.headers, []byte("KV-Operation")) {
		return []message{m}
	}
	ack := []byte(`{"stream":"KV_WAKE_STATE","seq":1}`)
	c.in.pushMessage(message{raw: fmt.Appendf(nil, "MSG %s 1 %d\r\n%s\r\n", m.reply, len(ack), ack), subject: m.reply, data: ack}, time.Time{})
	return nil
}

// forgetful lets each tenth notification be lost.
func forgetful() func(string, string, []byte) bool {
	n := 0
	return func(string, string, []byte) bool {
		n++
		return n%10 != 0
	}
}

// repetitive sends the first notification again, now and then.
func repetitive(w *world) func(string, string, []byte) bool {
	n, first, text := 0, "", []byte(nil)
	return func(sink, id string, body []byte) bool {
		if sink != sinks()[0] {
			return true
		}
		if n++; n == 1 {
			first, text = id, body
		}
		if n%10 == 0 {
			w.ledger.Took(sink, first, text)
		}
		return true
	}
}
