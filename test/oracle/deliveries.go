package oracle

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// deliveries: each sink took each alert, or there is a dead letter of it; they came in
// the order of the stream, and one that came again was the last, and the same.
func (c *check) deliveries() {
	if len(c.ledger.taken) == 0 {
		return
	}
	order := map[string]int{} // by id, from 1 on
	for i, a := range c.Alerts {
		order[fmt.Sprintf("%s-%s-%d", a.Position.Incarnation, subjects.Escape(a.Key), a.Timestamp)] = i + 1
	}
	letters := c.lettersOfSinks()
	for _, sink := range sorted(c.ledger.taken) {
		last, body := 0, []byte(nil)
		seen := map[string]bool{}
		for _, n := range c.ledger.taken[sink] {
			at := order[n.id]
			switch {
			case at == 0:
				c.violation(DeliveredOnce, "", "", 0, "%s was sent %s, and there is no such alert", sink, n.id)
				continue
			case at < last:
				c.violation(DeliveredOnce, "", "", 0, "%s was sent %s behind what comes after it", sink, n.id)
				continue
			case at == last && !bytes.Equal(body, n.body):
				c.violation(DeliveredOnce, "", "", 0, "%s was sent %s again, and it had changed", sink, n.id)
			}
			if at == last {
				c.report.Again++
			}
			seen[n.id], last, body = true, at, n.body
		}
		c.report.Delivered += len(seen)
		for id := range order {
			if !seen[id] && !slices.Contains(letters[sink], id) {
				c.violation(DeliveredOnce, "", "", 0, "%s was not sent %s, and there is no dead letter", sink, id)
			}
		}
	}
}

// lettersOfSinks returns the ids of what was given up, by sink. A letter is there twice if the alerter died as it wrote it.
func (c *check) lettersOfSinks() map[string][]string {
	ids := map[string][]string{}
	for _, p := range c.DeadLetters {
		if p.Stream != c.Names.AlertsStream() {
			continue
		}
		var n struct {
			ID string `json:"id"`
		}
		sink, ok := strings.CutPrefix(p.Service, "sink-")
		if !ok || wire.Unmarshal(p.Data, &n) != nil {
			c.violation(DeliveredOnce, "", "", p.Position, "%s has a dead letter that can't be read", p.Service)
			continue
		}
		ids[sink] = append(ids[sink], n.ID)
		c.report.GivenUp++
	}
	return ids
}
