package export

// The names of OpenTelemetry's semantic conventions that spans carry, all of
// version 1.41.0, the last one of which go.opentelemetry.io/otel generates the
// names of generative AI (package semconv/v1.41.0, files attribute_group.go and
// schema.go; the text is docs/gen-ai of open-telemetry/semantic-conventions at
// v1.41.0). They are in development there: a newer version is a change of this
// file, and TestNames compares it with that package.
const (
	schemaURL = "https://opentelemetry.io/schemas/1.41.0"

	attrOperation     = "gen_ai.operation.name"
	attrProvider      = "gen_ai.provider.name"
	attrWorkflow      = "gen_ai.workflow.name"
	attrAgentName     = "gen_ai.agent.name"
	attrAgentID       = "gen_ai.agent.id"
	attrAgentVersion  = "gen_ai.agent.version"
	attrConversation  = "gen_ai.conversation.id"
	attrRequestModel  = "gen_ai.request.model"
	attrResponseModel = "gen_ai.response.model"
	attrResponseID    = "gen_ai.response.id"
	attrFinishReasons = "gen_ai.response.finish_reasons"
	attrInputTokens   = "gen_ai.usage.input_tokens" // cached ones included
	attrOutputTokens  = "gen_ai.usage.output_tokens"
	attrCacheCreation = "gen_ai.usage.cache_creation.input_tokens"
	attrCacheRead     = "gen_ai.usage.cache_read.input_tokens"
	attrToolName      = "gen_ai.tool.name"
	attrToolType      = "gen_ai.tool.type"
	attrToolCall      = "gen_ai.tool.call.id"
	attrToolArguments = "gen_ai.tool.call.arguments"
	attrToolResult    = "gen_ai.tool.call.result"
	attrErrorType     = "error.type"
	attrService       = "service.name"
	attrServiceID     = "service.instance.id"

	opWorkflow = "invoke_workflow"
	opAgent    = "invoke_agent"
	opChat     = "chat"
	opTool     = "execute_tool"

	providerAnthropic = "anthropic"
	toolFunction      = "function"
	toolExtension     = "extension"
	errorOther        = "_OTHER"
)

// Names of wake's own.
const (
	scopeName = "wake"

	attrRun       = "wake.run.id"
	attrNode      = "wake.node.id"
	attrExec      = "wake.exec.id"
	attrNodeType  = "wake.node.type"
	attrAttempt   = "wake.attempt"
	attrStatus    = "wake.status"
	attrCost      = "wake.cost_usd"
	attrCostBasis = "wake.cost_basis" // see [wire.CostReported]
	attrDenied    = "wake.tool.denied"
	attrOpen      = "wake.open" // the end isn't in what was exported
	attrTurn      = "wake.turn"
	attrImported  = "wake.imported"
	attrParentRun = "wake.parent.run.id"
)
