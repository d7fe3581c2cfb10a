// Check renders kustomizations and says what is wrong with them, without a
// cluster: fields that Kubernetes doesn't know, pods that Pod Security would refuse,
// and what we ask for ourselves.
//
//	go run . ../overlays/*
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	sigsyaml "sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: check DIR...")
		os.Exit(2)
	}
	failed := false
	for _, dir := range os.Args[1:] {
		objects, problems, err := load(dir)
		if err != nil {
			problems = append(problems, err.Error())
		}
		problems = append(problems, collect(objects).problems()...)
		for _, p := range problems {
			fmt.Fprintf(os.Stderr, "%s: %s\n", dir, p)
		}
		fmt.Fprintf(os.Stdout, "%-8s %d objects, %d problems\n", filepath.Base(dir), len(objects), len(problems))
		failed = failed || len(problems) > 0 || len(objects) == 0
	}
	if failed {
		os.Exit(1)
	}
}

// load renders a kustomization.
func load(dir string) ([]runtime.Object, []string, error) {
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, nil, fmt.Errorf("kustomize: %w", err)
	}
	text, err := rendered.AsYaml()
	if err != nil {
		return nil, nil, fmt.Errorf("kustomize: %w", err)
	}
	return decode(text)
}

// foreign are kinds of other projects, which a plain cluster doesn't know.
var foreign = map[string]bool{
	"keda.sh/v1alpha1, Kind=ScaledObject":           true,
	"monitoring.coreos.com/v1, Kind=ServiceMonitor": true,
	"monitoring.coreos.com/v1, Kind=PodMonitor":     true,
	"monitoring.coreos.com/v1, Kind=PrometheusRule": true,
}

// decode reads objects, and refuses fields that their kinds don't have.
func decode(text []byte) (objects []runtime.Object, problems []string, err error) {
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for r := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text))); ; {
		document := make([]byte, len(text)+1)
		n, err := r.Read(document)
		if errors.Is(err, io.EOF) {
			return objects, problems, nil
		}
		if err != nil {
			return objects, problems, err
		}
		var kind runtime.TypeMeta
		if err := sigsyaml.Unmarshal(document[:n], &kind); err != nil {
			return objects, problems, err
		}
		if foreign[kind.GroupVersionKind().String()] {
			continue
		}
		o, _, err := strict.Decode(document[:n], nil, nil)
		if err != nil {
			problems = append(problems, kind.Kind+": "+err.Error())
		}
		if o != nil {
			objects = append(objects, o)
		}
	}
}
