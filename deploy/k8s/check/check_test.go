package check_test

import (
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

func render(t *testing.T, dir string) string {
	t.Helper()
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := rendered.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// judgeManifests returns what is wrong with rendered manifests.
func judgeManifests(t *testing.T, text string) []string {
	t.Helper()
	objects, problems, err := decode([]byte(text))
	if err != nil {
		problems = append(problems, err.Error())
	}
	if len(objects) == 0 {
		t.Fatal("no objects")
	}
	return append(problems, collect(objects).problems()...)
}

// TestOverlays renders each kustomization and says what is wrong with it, without a cluster: fields that Kubernetes doesn't know, pods that Pod
// Security would refuse, and what we ask for ourselves.
func TestOverlays(t *testing.T) {
	overlays, err := filepath.Glob("../overlays/*")
	if err != nil || len(overlays) == 0 {
		t.Fatal("no overlays", err)
	}
	for _, dir := range overlays {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			for _, p := range judgeManifests(t, render(t, dir)) {
				t.Error(p)
			}
		})
	}
}

// Each fault is found in manifests that have none.
func TestFaultsAreFound(t *testing.T) {
	findFaults(t, "../overlays/dev", map[string]fault{
		"unknown field":     {"enableServiceLinks: false", "enableServiceLink: false", "unknown field"},
		"a token":           {"automountServiceAccountToken: false\n      containers", "automountServiceAccountToken: true\n      containers", "token of the service account"},
		"root":              {"runAsNonRoot: true", "runAsNonRoot: false", "runAsNonRoot"},
		"privileges":        {"allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true", "allowPrivilegeEscalation"},
		"writable root":     {"readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "can be written to"},
		"no seccomp":        {"type: RuntimeDefault", "type: Unconfined", "seccomp"},
		"memory":            {"value: 430MiB", "value: 500MiB", "not below 90 %"},
		"liveness":          {"livenessProbe:\n          failureThreshold: 6\n          httpGet:\n            path: /healthz", "livenessProbe:\n          failureThreshold: 6\n          httpGet:\n            path: /readyz", "restarted for not being ready"},
		"grace":             {"terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 30", "less than 40 s"},
		"budget":            {"maxUnavailable: 1\n  selector", "maxUnavailable: 0\n  selector", "no pod to be away"},
		"no budget":         {"kind: PodDisruptionBudget\nmetadata:\n  labels:\n    app.kubernetes.io/part-of: wake\n  name: wake-alerter\n  namespace: wake\nspec:\n  maxUnavailable: 1\n  selector:\n    matchLabels:\n      app: wake-alerter", "kind: PodDisruptionBudget\nmetadata:\n  name: x\nspec:\n  maxUnavailable: 1\n  selector:\n    matchLabels:\n      app: other", "0 disruption budgets"},
		"missing map":       {"configMap:\n          name: nats", "configMap:\n          name: other", "there is no ConfigMap/other"},
		"service of nobody": {"clusterIP: None\n  ports:\n  - appProtocol: tcp\n    name: nats\n    port: 4222", "clusterIP: None\n  selector: {app: x}\n  ports:\n  - name: nats\n    port: 4222\n    targetPort: x", "Service/nats-headless"},
		"open network":      {"name: default-deny\n  namespace: wake\nspec:\n  podSelector: {}", "name: default-deny\n  namespace: wake\nspec:\n  podSelector: {matchLabels: {app: x}}", "no network policy denies"},
		"replicas":          {"  strategy:\n    rollingUpdate:\n      maxSurge: 1\n      maxUnavailable: 0\n    type: RollingUpdate\n  template:\n    metadata:\n      labels:\n        app: wake-runner", "  replicas: 2\n  strategy:\n    type: RollingUpdate\n  template:\n    metadata:\n      labels:\n        app: wake-runner", "how many replicas"},
	})
	findFaults(t, "testdata/agent-user", map[string]fault{
		"agents are the runner":      {`value: "65533"`, `value: "0"`, "agents are no other user"},
		"the node's root":            {"hostUsers: false", "hostUsers: true", "root is the node's"},
		"more rights":                {"- SETUID", "- SETUID\n            - SETFCAP", "other capabilities"},
		"rights beyond Pod Security": {"- SETUID", "- SETUID\n            - SYS_ADMIN", "Pod Security"},
		"rights to gain":             {"allowPrivilegeEscalation: false\n          capabilities:\n            add:", "allowPrivilegeEscalation: true\n          capabilities:\n            add:", "programs can gain rights"},
		"credentials":                {"defaultMode: 288\n          sources:\n          - secret:\n              items:\n              - key: runner.creds", "sources:\n          - secret:\n              items:\n              - key: runner.creds", "volume creds: agents can read it"},
	})
}

// fault is what is made of good manifests, and what is to be found then.
type fault struct{ from, to, want string }

func findFaults(t *testing.T, dir string, faults map[string]fault) {
	t.Helper()
	good := render(t, dir)
	if p := judgeManifests(t, good); len(p) > 0 {
		t.Fatalf("%s: %q", dir, p)
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(good, fault.from) {
				t.Fatalf("the manifests have no %q", fault.from)
			}
			found := judgeManifests(t, strings.Replace(good, fault.from, fault.to, 1))
			if !strings.Contains(strings.Join(found, "\n"), fault.want) {
				t.Errorf("problems %q, want one with %q", found, fault.want)
			}
		})
	}
}
