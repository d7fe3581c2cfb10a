package service

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"code.wake.dev/wake/internal/tracing"
)

// Traces sends the spans of a process to a collector of OpenTelemetry. A nil Traces
// sends none.
type Traces struct {
	provider *sdk.TracerProvider
	exporter sdk.SpanExporter
	log      *slog.Logger
}

// OpenTraces sends spans of the process with this name and version where the
// environment says so by the variables of OpenTelemetry's specification, by OTLP
// over HTTP: OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, or
// OTEL_TRACES_EXPORTER=otlp for a collector on this machine. Without one it returns
// nil. Those of samplers, batches, limits, headers, certificates and resources are
// read by OpenTelemetry itself. Whether a collector is there isn't looked at.
func OpenTraces(ctx context.Context, name, version string, lookup func(string) (string, bool), log *slog.Logger) (*Traces, error) {
	on, err := wantsTraces(lookup)
	if err != nil || !on {
		return nil, err
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, &Error{Code: CodeUsage, Err: fmt.Errorf("traces: %w", err), Hint: "look at the variables OTEL_EXPORTER_OTLP_…, or unset them"}
	}
	host, _ := os.Hostname() // else it has none
	of, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", name), attribute.String("service.version", version), attribute.String("host.name", host),
	), resource.WithFromEnv())
	if err != nil {
		return nil, &Error{Code: CodeUsage, Err: fmt.Errorf("traces: %w", err), Hint: "OTEL_RESOURCE_ATTRIBUTES is key=value,key=value"}
	}
	watched := &watchedExporter{SpanExporter: exporter, log: log}
	return &Traces{provider: sdk.NewTracerProvider(sdk.WithBatcher(watched), sdk.WithResource(of)), exporter: exporter, log: log}, nil
}

// wantsTraces reports whether the environment asks for traces.
func wantsTraces(lookup func(string) (string, bool)) (bool, error) {
	env := func(names ...string) (value string) {
		for _, n := range names {
			if v, ok := lookup(n); ok {
				value = cmp.Or(value, strings.TrimSpace(v))
			}
		}
		return value
	}
	if strings.EqualFold(env("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	endpoint := env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
	switch exporter := env("OTEL_TRACES_EXPORTER"); {
	case exporter == "none", exporter == "" && endpoint == "":
		return false, nil
	case exporter != "" && exporter != "otlp":
		return false, tracesUsage("OTEL_TRACES_EXPORTER=%q: only otlp and none are known", exporter)
	}
	switch protocol := env("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); protocol {
	case "", "http/protobuf", "http/json":
	default:
		return false, tracesUsage("OTEL_EXPORTER_OTLP_PROTOCOL=%q: only http/protobuf and http/json are known", protocol)
	}
	for _, name := range []string{"OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"} { // OpenTelemetry makes room for as many
		if given := env(name); given != "" {
			if n, err := strconv.Atoi(given); err != nil || n <= 0 {
				return false, tracesUsage("%s=%q is no number of spans above 0", name, given)
			}
		}
	}
	if endpoint == "" {
		return true, nil
	}
	if u, err := url.Parse(endpoint); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return false, tracesUsage("OTEL_EXPORTER_OTLP_ENDPOINT is no address of HTTP")
	}
	return true, nil
}

func tracesUsage(format string, args ...any) error {
	return &Error{
		Code: CodeUsage, Err: fmt.Errorf(format, args...),
		Hint: "give a collector's OTLP over HTTP, such as http://localhost:4318, or unset it",
	}
}

// Tracer returns what makes the spans of the process.
func (t *Traces) Tracer() trace.Tracer {
	if t == nil {
		return tracing.Off()
	}
	return tracing.New(t.provider)
}

// Close sends what is left, for at most as long as that, also if ctx has ended.
func (t *Traces) Close(ctx context.Context, wait time.Duration) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		_ = t.exporter.Shutdown(ctx) // cuts off what is being sent: the provider goes on with it for longer
		t.log.DebugContext(ctx, "the last spans were not sent", "error", err)
	}
}

// watchedExporter says when spans can't be sent, and when they can again.
type watchedExporter struct {
	sdk.SpanExporter

	log     *slog.Logger
	mu      sync.Mutex
	failing bool
}

// ExportSpans implements [sdk.SpanExporter]. What fails is said here, so that
// the SDK doesn't.
func (w *watchedExporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := w.SpanExporter.ExportSpans(ctx, spans)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil && !w.failing:
		w.log.WarnContext(ctx, "spans can't be sent, and are dropped", "count", len(spans), "error", err)
	case err != nil:
		w.log.DebugContext(ctx, "spans were dropped", "count", len(spans), "error", err)
	case w.failing:
		w.log.InfoContext(ctx, "spans are sent again")
	}
	w.failing = err != nil
	return nil
}
