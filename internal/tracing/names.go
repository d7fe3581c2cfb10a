package tracing

import "go.opentelemetry.io/otel/attribute"

// The names of OpenTelemetry's semantic conventions that spans of wake's services
// carry, those of messaging and of calls, of version 1.41.0 as in internal/export;
// TestNames compares them with package semconv/v1.41.0.
const (
	schemaURL = "https://opentelemetry.io/schemas/1.41.0"

	attrSystem        = "messaging.system"
	attrOperation     = "messaging.operation.name"
	attrOperationType = "messaging.operation.type"
	attrDestination   = "messaging.destination.name"
	attrBatch         = "messaging.batch.message_count"
	Group             = attribute.Key("messaging.consumer.group.name")
	attrRPCSystem     = "rpc.system.name"
	attrRPCMethod     = "rpc.method"
	attrErrorType     = "error.type"

	typeSend    = "send"
	typeProcess = "process"

	errorOther = "_OTHER"
)

// Names of wake's own.
const (
	system = "nats"

	opPublish = "publish" // several messages at once
	opSend    = "send"
	opProcess = "process"
	opDeliver = "deliver" // to a sink

	// RunTakenOver and ValuesSaved are the names of spans without a message.
	RunTakenOver = "take over run"
	ValuesSaved  = "save values"

	// What spans are about.
	Run      = attribute.Key("wake.run.id")
	Node     = attribute.Key("wake.node.id")
	Exec     = attribute.Key("wake.exec.id")
	Attempt  = attribute.Key("wake.attempt")
	Resumed  = attribute.Key("wake.resumed")
	Provider = attribute.Key("wake.agent.provider")
	Command  = attribute.Key("wake.command.type")
	Accepted = attribute.Key("wake.command.accepted")
	Position = attribute.Key("wake.position") // of the last message, in its stream
	Attempts = attribute.Key("wake.attempts") // until it was done, or given up
	Values   = attribute.Key("wake.values")   // number of values saved
	Sink     = attribute.Key("wake.sink.name")
	SinkType = attribute.Key("wake.sink.type")

	// AttemptFailed is the event of an attempt that a sink didn't take.
	AttemptFailed = "attempt failed"
)
