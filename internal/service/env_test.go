package service_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"code.wake.dev/wake/internal/service"
)

type settings struct {
	Port  int
	URL   string
	Every time.Duration
	Label []string
}

func parse(args []string, env map[string]string) (settings, error) {
	var s settings
	flags := pflag.NewFlagSet("wake", pflag.ContinueOnError)
	flags.IntVar(&s.Port, "port", 1, "")
	flags.StringVar(&s.URL, "nats-url", "default", "")
	flags.DurationVar(&s.Every, "every", time.Second, "")
	flags.StringArrayVar(&s.Label, "label", nil, "")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	lookup := func(name string) (string, bool) {
		value, ok := env[name]
		return value, ok
	}
	return s, service.FromEnv(flags, lookup)
}

func TestFromEnv(t *testing.T) {
	tests := []struct {
		name string
		args []string
		env  map[string]string
		want settings
	}{
		{"default", nil, nil, settings{1, "default", time.Second, nil}},
		{"env beats default", nil, map[string]string{"WAKE_PORT": "2", "WAKE_NATS_URL": "u", "WAKE_EVERY": "3s", "WAKE_LABEL": "a=b"}, settings{2, "u", 3 * time.Second, []string{"a=b"}}},
		{"flag beats env", []string{"--port=3"}, map[string]string{"WAKE_PORT": "2"}, settings{3, "default", time.Second, nil}},
		{"a flag's default value is a value", []string{"--port=1"}, map[string]string{"WAKE_PORT": "2"}, settings{1, "default", time.Second, nil}},
		{"empty is unset", nil, map[string]string{"WAKE_PORT": "", "WAKE_NATS_URL": ""}, settings{1, "default", time.Second, nil}},
		{"other names mean nothing", nil, map[string]string{"PORT": "2", "WAKE_OTHER": "x"}, settings{1, "default", time.Second, nil}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(tt.args, tt.env)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestFromEnvNamesTheVariable(t *testing.T) {
	_, err := parse(nil, map[string]string{"WAKE_PORT": "many"})
	var known *service.Error
	if !errors.As(err, &known) || known.Code != service.CodeUsage {
		t.Fatalf("error %v, want a usage error", err)
	}
	if got, want := err.Error(), `WAKE_PORT="many": it is no whole number`; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
}
