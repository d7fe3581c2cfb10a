package agent

import (
	"net/http"

	"code.wake.dev/wake/pkg/wire"
)

// The error types of a model's API that no try again helps against, as Claude Code calls
// them.
const (
	ErrorAuthentication = "authentication_failed"
	ErrorBilling        = "billing_error"
	ErrorInvalidRequest = "invalid_request"
	ErrorModelNotFound  = "model_not_found"
	ErrorServer         = "server_error" // which may pass
)

// statusOverloaded is Anthropic's status for too much load.
const statusOverloaded = 529

// APIErrorType returns the error type of a failure of a model's API: by the API's own name
// for it, such as overloaded_error, if that is one that is known, else by the HTTP status.
// All kinds of agents call it so.
func APIErrorType(status int, name string) string {
	switch name {
	case "authentication_error", "permission_error":
		return ErrorAuthentication
	case "billing_error":
		return ErrorBilling
	case "invalid_request_error", "request_too_large":
		return ErrorInvalidRequest
	case "not_found_error":
		return ErrorModelNotFound
	case "rate_limit_error":
		return wire.ErrorRateLimit
	case "overloaded_error":
		return wire.ErrorOverloaded
	case "api_error", "timeout_error":
		return ErrorServer
	}
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return ErrorAuthentication
	case status == http.StatusTooManyRequests:
		return wire.ErrorRateLimit
	case status == statusOverloaded:
		return wire.ErrorOverloaded
	case status >= http.StatusInternalServerError:
		return ErrorServer
	case status >= http.StatusBadRequest:
		return ErrorInvalidRequest
	}
	return wire.ErrorExecution
}
