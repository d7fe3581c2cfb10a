package console

import (
	"net/http"

	"code.wake.dev/wake/pkg/wire"
)

// system is how the installation is doing.
type system struct {
	Checks  []Check
	Runners []Runner
	Sinks   []wire.SinkStatus
	Letters []wire.Raw
	Absent  string // why nothing is known of sinks
	Viewer  string // the address for viewers, who may only read
	Users   int
}

func (s *Console) showSystem(w http.ResponseWriter, r *http.Request) {
	l, err := s.openLink(r.Context())
	if err != nil {
		s.showError(w, r, err)
		return
	}
	p := system{Users: len(s.users)}
	if s.c.Checks != nil {
		p.Checks = s.c.Checks(r.Context(), l.nc)
	}
	if s.c.Runners != nil {
		p.Runners = s.c.Runners(r.Context(), l.nc)
	}
	sinks, err := call[wire.SinksResponse](r.Context(), s, wire.VerbSinks, struct{}{})
	if err == nil {
		p.Sinks = sinks.Sinks
		var letters wire.LettersResponse
		if letters, err = call[wire.LettersResponse](r.Context(), s, wire.VerbLetters, wire.LettersRequest{}); err == nil {
			p.Letters = letters.Letters[:min(len(letters.Letters), 50)]
		}
	}
	if err != nil {
		p.Absent = err.Error()
	}
	if s.c.Users == "" && userOfRequest(r).role == operator {
		p.Viewer = s.Address() + "#token=" + s.users[1].token
	}
	s.showPage(w, r, http.StatusOK, "system", page{Title: "System", At: "system", Data: p})
}
