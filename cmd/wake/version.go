package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

type versionInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // of the source; ends in "+" if files were changed
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say which wake this is",
		RunE: func(*cobra.Command, []string) error {
			v := versionOfThis()
			return a.printAnswer(v, fmt.Sprintf("wake %s %s %s %s", v.Version, cmp.Or(v.Revision, "-"), v.Go, v.Platform))
		},
	}
}

func versionOfThis() versionInfo {
	info, _ := debug.ReadBuildInfo()
	return versionOf(info)
}

func versionOf(info *debug.BuildInfo) versionInfo {
	v := versionInfo{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info == nil {
		return v
	}
	v.Version = cmp.Or(info.Main.Version, v.Version)
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			v.Revision = s.Value[:min(len(s.Value), 12)] + v.Revision
		case s.Key == "vcs.modified" && s.Value == "true":
			v.Revision += "+"
		}
	}
	return v
}
