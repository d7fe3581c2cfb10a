package redact

import (
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// rule is a form of secret.
type rule struct {
	// keywords are what a text with such a secret contains, as written here: one of
	// at least [block] bytes. What match and open find begins with a keyword, so that
	// of a text in pieces nothing of it is gone when the keyword is whole.
	keywords []string
	// match finds the secret: its first group.
	match *regexp.Regexp
	// open finds the end of a text that may be the beginning of such a secret,
	// once a keyword is whole.
	open *regexp.Regexp
	// digit says that what has no digit is a word and no secret.
	digit bool
	// run says that a run of at least [minRun] bytes has the keyword and the secret, or is
	// the secret that follows "bearer".
	run bool
}

// minRun is the length in bytes of the shortest secret that is known by its length. A run is
// ASCII beyond '*': no white space, quotes or parentheses.
const minRun = 16

func isRunByte(c byte) bool { return c > '*' && c < 0x80 }

// isRun reports whether a text is a run that is long enough.
func isRun(text string) bool {
	for _, c := range []byte(text) {
		if !isRunByte(c) {
			return false
		}
	}
	return len(text) >= minRun
}

// tokenRule is a rule of tokens: a prefix, and at least so many characters of a class
// behind it. Keywords are what texts begin with that the prefix matches, if it is an
// expression.
func tokenRule(prefix, class string, least int, keywords ...string) rule {
	if len(keywords) == 0 {
		keywords, prefix = []string{prefix}, regexp.QuoteMeta(prefix)
	}
	length := "{" + strconv.Itoa(least) + ",}"
	return rule{
		keywords: keywords,
		match:    regexp.MustCompile("(" + prefix + class + length + ")"),
		open:     regexp.MustCompile(anyOfWords(keywords) + class + `*\z`),
		run:      true,
	}
}

func anyOfWords(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = regexp.QuoteMeta(w)
	}
	return "(?:" + strings.Join(quoted, "|") + ")"
}

// Characters of tokens.
const (
	alnum = `[0-9A-Za-z]`
	word  = `[0-9A-Za-z_-]`
	hexa  = `[0-9A-Fa-f]`
	jwt   = `[0-9A-Za-z_.-]`
)

// certainRules are the forms that are nothing but secrets. The facts about formats are
// those of the rules of gitleaks v8.30.1 (MIT), which follow what services issue;
// lengths are lower bounds here, since what is longer is no less secret.
func certainRules() []rule { return slices.Concat(makerRules(), formatRules(), placeRules()) }

// makerRules are the forms that makers of services gave their tokens.
func makerRules() []rule {
	return []rule{
		tokenRule("sk-ant-", word, 20), // Anthropic
		tokenRule(`sk-(?:proj|svcacct|admin)-`, word, 20, "sk-proj-", "sk-svcacct-", "sk-admin-"), // OpenAI
		{ // OpenAI, of old
			keywords: []string{"T3BlbkFJ", "sk-"},
			match:    regexp.MustCompile(`(sk-[0-9A-Za-z]{20}T3BlbkFJ[0-9A-Za-z]{20})`),
			open:     regexp.MustCompile(`sk-[0-9A-Za-z]{0,48}\z`),
			run:      true,
		},
		tokenRule("sk-or-v1-", hexa, 32), // OpenRouter
		tokenRule("gsk_", alnum, 40),     // Groq
		tokenRule("xai-", alnum, 60),     // xAI
		tokenRule("pplx-", alnum, 40),    // Perplexity
		tokenRule("AIza", word, 35),      // Google
		tokenRule("hf_", `[A-Za-z]`, 34, expandPrefix("hf_", letters)...),
		tokenRule(`gh[pousr]_`, alnum, 36, "ghp_", "gho_", "ghu_", "ghs_", "ghr_"), // GitHub
		tokenRule("github_pat_", `[0-9A-Za-z_]`, 60),
		tokenRule(`gl(?:pat|dt|rt|ptt|cbt|ft|soat|agent|oas)-`, jwt, 20,
			"glpat-", "gldt-", "glrt-", "glptt-", "glcbt-", "glft-", "glsoat-", "glagent-", "gloas-"), // GitLab
		{ // AWS: the id of a key
			keywords: []string{"AKIA", "ASIA", "ABIA", "ACCA"},
			match:    regexp.MustCompile(`\b((?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16})\b`),
			open:     regexp.MustCompile(`(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{0,16}\z`),
			run:      true,
		},
		tokenRule(`xox[abeoprs]-`, `[0-9A-Za-z-]`, 20, "xoxa-", "xoxb-", "xoxe-", "xoxo-", "xoxp-", "xoxr-", "xoxs-"), // Slack
		tokenRule("xapp-", `[0-9A-Za-z-]`, 20),
		tokenRule("hooks.slack.com/services/", `[0-9A-Za-z/]`, 30),
		tokenRule(`[sr]k_(?:test|live|prod)_`, alnum, 10, "sk_test_", "sk_live_", "sk_prod_", "rk_test_", "rk_live_", "rk_prod_"), // Stripe
		tokenRule("whsec_", `[0-9A-Za-z+/=]`, 24),
		tokenRule("npm_", alnum, 36),
		tokenRule("pypi-AgEIcHlwaS5vcmc", word, 50),
		tokenRule("rubygems_", hexa, 48),
		tokenRule("dop_v1_", hexa, 64),         // DigitalOcean
		tokenRule("glsa_", `[0-9A-Za-z_]`, 40), // Grafana
		tokenRule("glc_", `[0-9A-Za-z+/=]`, 32),
		tokenRule("hvs.", word, 80), // Vault
		tokenRule("lin_api_", alnum, 40),
		tokenRule("ntn_", alnum, 40),
		tokenRule("shpat_", hexa, 32),
		tokenRule("PMAK-", `[0-9a-f-]`, 50),
		tokenRule("sntryu_", hexa, 64),
		tokenRule("AGE-SECRET-KEY-1", `[0-9A-Z]`, 58),
		tokenRule(`SG\.`, jwt, 60, expandPrefix("SG.", letters+digits+"_.-")...), // SendGrid
	}
}

// formatRules are the forms of keys and tokens that a standard sets.
func formatRules() []rule {
	return []rule{
		{ // JSON web tokens
			keywords: expandPrefix("eyJ", letters+digits+"_-"),
			match:    regexp.MustCompile(`(eyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]*)`),
			open:     regexp.MustCompile(`eyJ[0-9A-Za-z_-]*(?:\.[0-9A-Za-z_-]*){0,2}\z`),
			run:      true,
		},
		{ // private keys, to their end or that of the text
			keywords: []string{"-----BEGIN"},
			match:    regexp.MustCompile(`(-----BEGIN[ A-Z0-9]{0,60}PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END[ A-Z0-9]{0,60}PRIVATE KEY(?: BLOCK)?-----|\z))`),
			open: regexp.MustCompile(`-----BEGIN(?:[ A-Z0-9]{0,60}-{0,4}\z|[ A-Z0-9]{0,60}PRIVATE KEY(?: BLOCK)?-----` +
				`(?:[^-]|-{1,4}[^-]|-----[^E])*(?:-----E?N?D?[ A-Z0-9]{0,60}-{0,4}|-{0,4})\z)`),
		},
		{ // NATS: seeds of keys
			keywords: slices.Concat(expandPrefix("SUA", seeds), expandPrefix("SAA", seeds), expandPrefix("SOA", seeds)),
			match:    regexp.MustCompile(`\b(S[UAO]A[A-P][A-Z2-7]{54})\b`),
			open:     regexp.MustCompile(`S[UAO]A[A-P][A-Z2-7]{0,54}\z`),
			run:      true,
		},
	}
}

// placeRules know a secret by what stands before it.
func placeRules() []rule {
	return []rule{
		{ // passwords in addresses
			keywords: []string{"://"},
			match:    regexp.MustCompile(`://[^\s/:@"'<>\[]*:([^\s/@"'<>\[]{3,})@`),
			open:     regexp.MustCompile(`://[^\s/@"'<>\[]*\z`),
		},
		{ // headers
			keywords: []string{"uthorization", "UTHORIZATION"},
			match:    regexp.MustCompile(`(?i)uthorization\\?["']?\s*[:=]\s*\\?["']?(?:(?:bearer|basic|token|digest|negotiate|apikey)\s+)?([^\s"',;\[\\]{8,})`),
			open:     regexp.MustCompile(`(?i)uthorization\\?["']?\s*(?:[:=]\s*\\?["']?(?:[a-z]*\s+)?[^\s"',;\[\\]*)?\z`),
			digit:    true,
		},
		{
			keywords: []string{"x-api-key", "X-Api-Key", "X-API-Key", "X-API-KEY", "private-token", "PRIVATE-TOKEN", "Private-Token"},
			match:    regexp.MustCompile(`(?i)(?:x-api-key|private-token)\\?["']?\s*[:=]\s*\\?["']?([^\s"',;\[\\]{8,})`),
			open:     regexp.MustCompile(`(?i)(?:x-api-key|private-token)\\?["']?\s*(?:[:=]\s*\\?["']?[^\s"',;\[\\]*)?\z`),
			digit:    true,
		},
		{
			keywords: []string{"earer ", "EARER "},
			match:    regexp.MustCompile(`(?i)earer\s+([0-9A-Za-z._~+/=-]{16,})`),
			open:     regexp.MustCompile(`(?i)earer\s+[0-9A-Za-z._~+/=-]*\z`),
			digit:    true,
			run:      true,
		},
	}
}

// likelyRules are the forms that mostly are secrets: values of names like password.
func likelyRules() []rule {
	const name = `(?i)(?:api[_-]?key|secret|token|password|passwd|credential)s?\\?["']?\s*`
	return []rule{{
		keywords: []string{
			"apikey", "api_key", "api-key", "apiKey", "ApiKey", "API_KEY", "API-KEY", "APIKEY", "secret", "Secret", "SECRET", "token", "Token", "TOKEN",
			"password", "Password", "PASSWORD", "passwd", "PASSWD", "credential", "Credential", "CREDENTIAL",
		},
		match: regexp.MustCompile(name + `[:=]\s*\\?["']?([^\s"',;&\\\[]{6,})`),
		open:  regexp.MustCompile(name + `(?:[:=]\s*\\?["']?[^\s"',;&\\\[]*)?\z`),
	}}
}

const (
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits  = "0123456789"
	seeds   = "ABCDEFGHIJKLMNOP" // what seeds go on with
)

// expandPrefix returns the prefix with each of the characters behind it.
func expandPrefix(prefix, characters string) []string {
	var out []string
	for _, c := range characters {
		out = append(out, prefix+string(c))
	}
	return out
}

// Environ returns the values of an environment ("NAME=value") that are secrets by
// their names: *_KEY, *_TOKEN, *_SECRET, *_PASS and what has PASSWORD, PASSWD or
// CREDENTIAL in it; and what follows the scheme in the headers that an exporter of
// OpenTelemetry sends, OTEL_EXPORTER_*_HEADERS ("authorization=Bearer%20..."). Values
// that are shorter than [MinValue] don't count, nor do paths and numbers, which such
// names have too.
func Environ(environ []string) []string {
	var out []string
	add := func(value string) {
		if len(value) >= MinValue && !strings.HasPrefix(value, "/") && strings.Trim(value, digits) != "" {
			out = append(out, value)
		}
	}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		switch {
		case secretName(name):
			add(value)
		case strings.HasPrefix(name, "OTEL_EXPORTER_") && strings.HasSuffix(name, "_HEADERS"):
			for header := range strings.SplitSeq(value, ",") {
				_, sent, _ := strings.Cut(header, "=")
				if plain, err := url.PathUnescape(sent); err == nil {
					sent = plain
				}
				add(sent[strings.LastIndexByte(sent, ' ')+1:])
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func secretName(name string) bool {
	name = strings.ToUpper(name)
	for _, end := range []string{"KEY", "TOKEN", "SECRET", "_PASS"} {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return slices.ContainsFunc([]string{"PASSWORD", "PASSWD", "CREDENTIAL"}, func(part string) bool { return strings.Contains(name, part) })
}
