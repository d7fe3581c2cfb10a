package codex

import "time"

// RestEvery sets how often the host is told of a resting point; 1: always.
func (p *Provider) RestEvery(d time.Duration) { p.restEvery = d }
