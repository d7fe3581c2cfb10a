package check_test

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// theirs are the secrets that the operator makes; see README.md.
var theirs = []string{"nats-auth", "nats-tls", "wake-creds", "wake-store"}

// workload is what makes pods.
type workload struct {
	kind     string
	meta     metav1.ObjectMeta
	replicas *int32 // nil: not said
	pod      *corev1.PodTemplateSpec
}

func (w workload) serves() bool { return w.kind != "Job" }

// manifests are the objects of one installation.
type manifests struct {
	workloads []workload
	objects   []runtime.Object
	names     map[string]bool // "<kind>/<name>"
}

func collect(objects []runtime.Object) manifests {
	m := manifests{objects: objects, names: map[string]bool{}}
	for _, o := range objects {
		if named, ok := o.(metav1.Object); ok {
			m.names[o.GetObjectKind().GroupVersionKind().Kind+"/"+named.GetName()] = true
		}
		switch o := o.(type) {
		case *appsv1.Deployment:
			m.workloads = append(m.workloads, workload{o.Kind, o.ObjectMeta, o.Spec.Replicas, &o.Spec.Template})
		case *appsv1.StatefulSet:
			m.workloads = append(m.workloads, workload{o.Kind, o.ObjectMeta, o.Spec.Replicas, &o.Spec.Template})
		case *batchv1.Job:
			m.workloads = append(m.workloads, workload{o.Kind, o.ObjectMeta, nil, &o.Spec.Template})
		}
	}
	return m
}

// problems says what is wrong with the manifests.
func (m manifests) problems() (found []string) {
	for _, w := range m.workloads {
		for _, p := range slices.Concat(restricted(w), isolated(w), measured(w), probed(w), m.referred(w), m.disrupted(w)) {
			found = append(found, w.kind+"/"+w.meta.Name+": "+p)
		}
	}
	return append(found, slices.Concat(m.scaled(), m.selected(), m.denied())...)
}

// restricted is Pod Security's own judgement, of pods whose agents are another user at the level that allows that.
func restricted(w workload) (found []string) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return []string{err.Error()}
	}
	level := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	if w.hasAgentUser() {
		level.Level = api.LevelBaseline
	}
	for _, r := range evaluator.EvaluatePod(level, &w.pod.ObjectMeta, &w.pod.Spec) {
		if !r.Allowed {
			found = append(found, "Pod Security: "+r.ForbiddenReason+": "+r.ForbiddenDetail)
		}
	}
	return found
}

// isolated is what we ask for beyond Pod Security.
func isolated(w workload) (found []string) {
	s := w.pod.Spec
	if s.AutomountServiceAccountToken == nil || *s.AutomountServiceAccountToken {
		found = append(found, "pods get a token of the service account")
	}
	if s.EnableServiceLinks == nil || *s.EnableServiceLinks {
		found = append(found, "pods get variables of all services")
	}
	if s.ServiceAccountName == "" {
		found = append(found, "pods have no service account of their own")
	}
	switch {
	case w.hasAgentUser():
		found = append(found, parted(s)...)
	case s.SecurityContext == nil || s.SecurityContext.RunAsUser == nil || *s.SecurityContext.RunAsUser == 0:
		found = append(found, "pods have no numeric user")
	}
	for _, c := range s.Containers {
		if c.SecurityContext == nil || c.SecurityContext.ReadOnlyRootFilesystem == nil || !*c.SecurityContext.ReadOnlyRootFilesystem {
			found = append(found, c.Name+": the root file system can be written to")
		}
	}
	return found
}

// agentUser tells a runner the user of its agents.
const agentUser = "WAKE_AGENT_USER"

// hasAgentUser reports whether agents of the pods run as another user than the runner.
func (w workload) hasAgentUser() bool {
	return slices.ContainsFunc(w.pod.Spec.Containers, func(c corev1.Container) bool { return variable(c, agentUser) != "" })
}

func variable(c corev1.Container, name string) string {
	i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name })
	if i < 0 {
		return ""
	}
	return c.Env[i].Value
}

// parting is what it takes to start programs as another user, to end them and to keep their folders:
// the agent-user.txtar of cmd/wake runs with no more.
var parting = []corev1.Capability{"CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETUID"}

// parted: a runner whose agents are another user is root of the pod alone, with no more rights than that takes, and they
// can't read its secrets.
func parted(s corev1.PodSpec) (found []string) {
	if s.HostUsers == nil || *s.HostUsers {
		found = append(found, "its root is the node's")
	}
	for _, c := range s.Containers {
		user, context := variable(c, agentUser), c.SecurityContext
		if user != "" && (s.SecurityContext == nil || s.SecurityContext.RunAsUser == nil || user == fmt.Sprint(*s.SecurityContext.RunAsUser)) {
			found = append(found, c.Name+": agents are no other user")
		}
		if context == nil || context.AllowPrivilegeEscalation == nil || *context.AllowPrivilegeEscalation {
			found = append(found, c.Name+": programs can gain rights")
		}
		if context == nil || context.Capabilities == nil || !slices.Contains(context.Capabilities.Drop, "ALL") || !slices.Equal(context.Capabilities.Add, parting) {
			found = append(found, fmt.Sprintf("%s: it has other capabilities than %v", c.Name, parting))
		}
	}
	for _, v := range s.Volumes {
		mode := int32(0)
		switch {
		case v.Secret != nil:
			mode = modeOf(v.Secret.DefaultMode)
		case v.Projected != nil:
			mode = modeOf(v.Projected.DefaultMode)
		}
		if mode&0o007 != 0 {
			found = append(found, "volume "+v.Name+": agents can read it")
		}
	}
	return found
}

// modeOf is the mode of files in a volume that says none.
func modeOf(said *int32) int32 {
	if said == nil {
		return 0o644
	}
	return *said
}

// measured: memory has a limit, and Go knows it.
func measured(w workload) (found []string) {
	for _, c := range w.pod.Spec.Containers {
		limit, ok := c.Resources.Limits[corev1.ResourceMemory]
		if !ok || c.Resources.Requests.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
			found = append(found, c.Name+": requests for CPU and memory and a limit of memory are wanted")
			continue
		}
		i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" })
		if i < 0 {
			found = append(found, c.Name+": no GOMEMLIMIT")
			continue
		}
		soft, err := resource.ParseQuantity(strings.TrimSuffix(c.Env[i].Value, "B"))
		if err != nil || soft.Value() > limit.Value()*9/10 {
			found = append(found, fmt.Sprintf("%s: GOMEMLIMIT %s is not below 90 %% of %s", c.Name, c.Env[i].Value, limit.String()))
		}
	}
	return found
}

// probed: a process is restarted for its own faults only, and has time to end.
func probed(w workload) (found []string) {
	if !w.serves() {
		return nil
	}
	for _, c := range w.pod.Spec.Containers {
		if c.StartupProbe == nil || c.ReadinessProbe == nil || c.LivenessProbe == nil {
			found = append(found, c.Name+": startup, readiness and liveness want a probe")
			continue
		}
		live, ready := c.LivenessProbe.HTTPGet, c.ReadinessProbe.HTTPGet
		if live == nil || ready == nil || live.Path == ready.Path || strings.Contains(live.Path, "ready") {
			found = append(found, c.Name+": it would be restarted for not being ready")
		}
	}
	if grace := w.pod.Spec.TerminationGracePeriodSeconds; grace == nil || *grace < 40 {
		found = append(found, "less than 40 s to end in order")
	}
	return found
}

// referred: what pods name is there.
func (m manifests) referred(w workload) (found []string) {
	missing := func(kind, name string, optional *bool) {
		known := m.names[kind+"/"+name] || kind == "Secret" && slices.Contains(theirs, name)
		if !known && (optional == nil || !*optional) {
			found = append(found, "there is no "+kind+"/"+name)
		}
	}
	missing("ServiceAccount", w.pod.Spec.ServiceAccountName, nil)
	for _, v := range w.pod.Spec.Volumes {
		switch {
		case v.ConfigMap != nil:
			missing("ConfigMap", v.ConfigMap.Name, v.ConfigMap.Optional)
		case v.Secret != nil:
			missing("Secret", v.Secret.SecretName, v.Secret.Optional)
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				if s.Secret != nil {
					missing("Secret", s.Secret.Name, s.Secret.Optional)
				}
			}
		}
	}
	for _, c := range w.pod.Spec.Containers {
		for _, e := range c.EnvFrom {
			if e.ConfigMapRef != nil {
				missing("ConfigMap", e.ConfigMapRef.Name, e.ConfigMapRef.Optional)
			}
			if e.SecretRef != nil {
				missing("Secret", e.SecretRef.Name, e.SecretRef.Optional)
			}
		}
	}
	return found
}

// disrupted: a budget says how many pods may be away, and doesn't stop a drain.
func (m manifests) disrupted(w workload) (found []string) {
	if !w.serves() {
		return nil
	}
	budgets := 0
	for _, o := range m.objects {
		b, ok := o.(*policyv1.PodDisruptionBudget)
		if !ok || !matches(b.Spec.Selector, w.pod.Labels) {
			continue
		}
		budgets++
		if b.Spec.MaxUnavailable == nil || b.Spec.MaxUnavailable.IntValue() < 1 {
			found = append(found, "its budget allows no pod to be away, or may not: want maxUnavailable")
		}
	}
	if budgets != 1 {
		found = append(found, fmt.Sprintf("%d disruption budgets", budgets))
	}
	return found
}

// scaled: a workload that is scaled names no replicas, or each apply would undo the scaling.
func (m manifests) scaled() (found []string) {
	for _, o := range m.objects {
		h, ok := o.(*autoscalingv2.HorizontalPodAutoscaler)
		if !ok {
			continue
		}
		i := slices.IndexFunc(m.workloads, func(w workload) bool {
			return w.kind == h.Spec.ScaleTargetRef.Kind && w.meta.Name == h.Spec.ScaleTargetRef.Name
		})
		if i < 0 || m.workloads[i].replicas != nil {
			found = append(found, "HorizontalPodAutoscaler/"+h.Name+": its target isn't there, or says how many replicas it has")
		}
	}
	return found
}

// selected: each service has pods, and the ports that it names.
func (m manifests) selected() (found []string) {
	for _, o := range m.objects {
		s, ok := o.(*corev1.Service)
		if !ok {
			continue
		}
		pods := slices.DeleteFunc(slices.Clone(m.workloads), func(w workload) bool {
			return !labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(w.pod.Labels))
		})
		if len(pods) == 0 {
			found = append(found, "Service/"+s.Name+": it selects no pods")
		}
		for _, p := range s.Spec.Ports {
			if p.TargetPort.StrVal != "" && !slices.ContainsFunc(pods, func(w workload) bool { return hasPort(w, p.TargetPort.StrVal) }) {
				found = append(found, "Service/"+s.Name+": no pod has port "+p.TargetPort.StrVal)
			}
		}
	}
	return found
}

func hasPort(w workload, name string) bool {
	return slices.ContainsFunc(w.pod.Spec.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == name })
	})
}

// denied: what no policy allows is denied, in both directions.
func (m manifests) denied() []string {
	for _, o := range m.objects {
		p, ok := o.(*networkingv1.NetworkPolicy)
		everything := ok && len(p.Spec.PodSelector.MatchLabels)+len(p.Spec.PodSelector.MatchExpressions) == 0
		if everything && len(p.Spec.Ingress)+len(p.Spec.Egress) == 0 && len(p.Spec.PolicyTypes) == 2 {
			return nil
		}
	}
	return []string{"no network policy denies what the others don't allow"}
}

func matches(s *metav1.LabelSelector, set map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(labels.Set(set))
}
