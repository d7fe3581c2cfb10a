package redact_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"code.wake.dev/wake/internal/redact"
)

func TestEnviron(t *testing.T) {
	t.Parallel()
	got := redact.Environ([]string{
		"ANTHROPIC_API_KEY=b-swordfish", "github_token=a-swordfish", "A_SECRET=short", "DB_PASSWORD_FILE=/run/db/password",
		"PGPASSWORD=c=swordfish", "SSH_KEY=/root/.ssh/id", "OTHER=d-swordfish", "SESSION_TOKEN=12345678901", "KEYBOARD=e-swordfish",
		"AGAIN_TOKEN=a-swordfish", "NOTHING",
		"OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20f-swordfish,x-scope=short", "OTEL_EXPORTER_OTLP_TRACES_HEADERS=x-api=g-swordfish",
	})
	if d := cmp.Diff([]string{"a-swordfish", "b-swordfish", "c=swordfish", "f-swordfish", "g-swordfish"}, got); d != "" {
		t.Error(d)
	}
}
