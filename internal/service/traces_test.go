package service_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/internal/tracing/otlptest"
)

func TestTracesAreOff(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"by default":    {},
		"all of it":     {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318", "OTEL_SDK_DISABLED": "true"},
		"these":         {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318", "OTEL_TRACES_EXPORTER": "none"},
		"empty is none": {"OTEL_EXPORTER_OTLP_ENDPOINT": " ", "OTEL_TRACES_EXPORTER": ""},
	} {
		traces, err := service.OpenTraces(t.Context(), "wake", "1", func(n string) (string, bool) { return env[n], true }, slog.New(slog.DiscardHandler))
		if traces != nil || err != nil {
			t.Errorf("%s: %v, %v", name, traces, err)
		}
		traces.Close(t.Context(), time.Minute)
		if ctx, span := traces.Tracer().Start(t.Context(), "x"); span.IsRecording() || ctx == nil {
			t.Errorf("%s: spans are made", name)
		}
	}
}

func TestTracesRefuse(t *testing.T) {
	for name, value := range map[string]string{
		"OTEL_TRACES_EXPORTER": "zipkin", "OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
	} {
		lookup := func(n string) (string, bool) {
			if n == "OTEL_TRACES_EXPORTER" && n != name {
				return "otlp", true
			}
			return value, n == name
		}
		_, err := service.OpenTraces(t.Context(), "wake", "1", lookup, slog.New(slog.DiscardHandler))
		if known, ok := errors.AsType[*service.Error](err); !ok || known.Code != service.CodeUsage || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
}

// What is left is sent in the end, under the name and with the headers that the
// environment gives, and as many as its sampler takes.
func TestTracesOfEnvironment(t *testing.T) {
	collector := otlptest.Start(t)
	env := map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL, "OTEL_SERVICE_NAME": "mine", "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x",
		"OTEL_TRACES_SAMPLER": "always_on",
	}
	send := func(sampler string) int {
		before := len(collector.Spans())
		env["OTEL_TRACES_SAMPLER"] = sampler
		for n, v := range env {
			t.Setenv(n, v)
		}
		traces, err := service.OpenTraces(t.Context(), "wake", "1", func(n string) (string, bool) { return env[n], env[n] != "" }, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			_, span := traces.Tracer().Start(t.Context(), "x")
			span.End()
		}
		traces.Close(t.Context(), time.Minute)
		return len(collector.Spans()) - before
	}
	if on, off := send("always_on"), send("always_off"); on != 3 || off != 0 {
		t.Errorf("%d and %d spans", on, off)
	}
	if s := collector.Spans(); len(s) == 0 || s[0].Service != "mine" || collector.Header().Get("Authorization") != "Bearer x" {
		t.Errorf("%+v %v", s, collector.Header())
	}
}

// OpenTelemetry makes room for as many spans as it is told.
func TestTracesRefuseSizes(t *testing.T) {
	for _, size := range []string{"-1", "0", "many"} {
		env := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_BSP_MAX_QUEUE_SIZE": size}
		_, err := service.OpenTraces(t.Context(), "wake", "1", func(n string) (string, bool) { return env[n], env[n] != "" }, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), "OTEL_BSP_MAX_QUEUE_SIZE") {
			t.Errorf("%s: %v", size, err)
		}
	}
}

// A collector that is to be asked again later keeps nobody waiting in the end.
func TestTracesEnd(t *testing.T) {
	collector := otlptest.Start(t)
	collector.Answer(http.StatusServiceUnavailable)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	traces, err := service.OpenTraces(t.Context(), "wake", "1", os.LookupEnv, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	_, span := traces.Tracer().Start(t.Context(), "x")
	span.End()
	begun := time.Now()
	traces.Close(t.Context(), 50*time.Millisecond)
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("the end took %s", took)
	}
}

// That a collector takes nothing is said once.
func TestTracesWithoutCollector(t *testing.T) {
	collector := otlptest.Start(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
	var said bytes.Buffer
	traces, err := service.OpenTraces(t.Context(), "wake", "1", os.LookupEnv, slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	spans := func(until func() bool) {
		for ; !until(); <-time.After(2 * time.Millisecond) {
			_, span := traces.Tracer().Start(t.Context(), "x")
			span.End()
		}
	}
	collector.Answer(http.StatusForbidden)
	spans(func() bool { return collector.Requests() > 2 })
	collector.Answer(http.StatusOK)
	spans(func() bool { return len(collector.Spans()) > 0 })
	traces.Close(t.Context(), time.Minute)
	text := said.String()
	if strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "spans can't be sent") || !strings.Contains(text, "spans are sent again") {
		t.Error(text)
	}
}
