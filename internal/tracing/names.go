package tracing

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
	attrConsumerGroup = "messaging.consumer.group.name"
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

	attrRun      = "wake.run.id"
	attrNode     = "wake.node.id"
	attrExec     = "wake.exec.id"
	attrAttempt  = "wake.attempt"
	attrResumed  = "wake.resumed"
	attrProvider = "wake.agent.provider"
	attrCommand  = "wake.command.type"
	attrAccepted = "wake.command.accepted"
	attrPosition = "wake.position" // of the last message, in its stream
	attrAttempts = "wake.attempts" // until it was done, or given up
	attrValues   = "wake.values"   // number of values saved
	attrSink     = "wake.sink.name"
	attrSinkType = "wake.sink.type"

	// AttemptFailed is the event of an attempt that a sink didn't take.
	AttemptFailed = "attempt failed"
)
