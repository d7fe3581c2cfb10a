package recorder

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

// fillAlertCounts fills in how many alerts a run and its agents have raised. Where the
// server can't say, they are left out.
func (r *Recorder) fillAlertCounts(ctx context.Context, runID string, run *wire.AgentStatus, agents []wire.AgentStatus) {
	names := r.log.Names()
	stream, err := r.log.JetStream().Stream(ctx, names.AlertsStream())
	if err != nil {
		return
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(names.RunAlerts(runID)))
	if err != nil || len(info.State.Subjects) == 0 {
		return
	}
	byNode := map[string]int{}
	for subject, n := range info.State.Subjects {
		run.Alerts += int(n)
		if _, node, _, _, err := names.ParseAlert(subject); err == nil {
			byNode[node] += int(n)
		}
	}
	for i := range agents {
		agents[i].Alerts = byNode[agents[i].AgentID]
	}
	m, err := stream.GetLastMsgForSubject(ctx, names.RunAlerts(runID))
	if err != nil {
		return
	}
	var last wire.Alert
	if data, err := r.log.Unseal(m.Subject, m.Data); err == nil && wire.Unmarshal(data, &last) == nil {
		run.LastAlert = timeline.Line(last.Text, 300)
	}
}
