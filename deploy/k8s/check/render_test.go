package check_test

import (
	"bytes"
	"errors"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	sigsyaml "sigs.k8s.io/yaml"
)

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
