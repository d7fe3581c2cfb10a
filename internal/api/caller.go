package api

import (
	"context"
	"fmt"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/pkg/wire"
)

type callerKey struct{}

// CallerOf returns the caller, as the server names it. A server without accounts names
// none: the zero caller may ask about everything.
func CallerOf(ctx context.Context) access.Caller {
	c, _ := ctx.Value(callerKey{}).(access.Caller)
	return c
}

// identifyCaller returns the context of a request with its caller, and refuses what the caller
// may not ask. It refuses a request without a caller where the server names the callers of all
// requests from other accounts.
func (r *request) identifyCaller(ctx context.Context, e Endpoint, header string) context.Context {
	if header == "" && !r.w.knowsUsers {
		return ctx
	}
	c, err := access.ReadCaller(header)
	switch run := r.body.TextAt("run"); {
	case r.problem != nil:
	case err != nil:
		r.problem = &wire.APIError{Code: wire.CodeDenied, Message: "the user of the request isn't known", Hint: "connect with credentials that wake auth makes"}
	case c.Run == "":
	case !e.ofRun, c.Run != run, r.body.Get("agentId") != nil:
		r.problem = &wire.APIError{Code: wire.CodeDenied, Message: fmt.Sprintf("the credentials of %s are for run %s", c.Name, c.Run), Hint: "name this run, by its id"}
	}
	return context.WithValue(ctx, callerKey{}, c)
}
