package mcp

import (
	"context"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// The addresses of resources.
const (
	runsURI   = "wake://runs"
	statusURI = "wake://runs/{run}"
	logURI    = "wake://runs/{run}/log"
)

// addResources adds what a client can attach to a conversation: the list of runs, a run, and its log.
func (p Pipeline) addResources(s *sdk.Server) {
	s.AddResource(&sdk.Resource{URI: runsURI, Name: "runs", Description: "The newest runs.", MIMEType: "text/plain"}, p.readResource)
	s.AddResourceTemplate(&sdk.ResourceTemplate{URITemplate: statusURI, Name: "run", Description: "How a run is doing.", MIMEType: "text/plain"}, p.readResource)
	s.AddResourceTemplate(&sdk.ResourceTemplate{URITemplate: logURI, Name: "log", Description: "The last lines of a run's log.", MIMEType: "text/plain"}, p.readResource)
}

// readResource reads any resource by its address.
func (p Pipeline) readResource(ctx context.Context, r *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	rest, ok := strings.CutPrefix(r.Params.URI, runsURI)
	if !ok {
		return nil, sdk.ResourceNotFoundError(r.Params.URI)
	}
	run, isLog := strings.CutSuffix(strings.TrimPrefix(rest, "/"), "/log")
	text, err := "", error(nil)
	switch {
	case rest == "":
		text, _, err = p.listRuns(ctx, runsInput{})
	case isLog:
		text, _, err = p.readLog(ctx, logInput{Run: run, Limit: maxList})
	default:
		text, _, err = p.showStatus(ctx, statusInput{Run: run})
	}
	if err != nil {
		return nil, toolError{err}
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: r.Params.URI, MIMEType: "text/plain", Text: boundText(text)}}}, nil
}
