package redact

import (
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
}

// token is a rule of tokens: a prefix, and at least so many characters of a class
// behind it. Keywords are what texts begin with that the prefix matches, if it is an
// expression.
func token(prefix, class string, least int, keywords ...string) rule {
	if len(keywords) == 0 {
		keywords, prefix = []string{prefix}, regexp.QuoteMeta(prefix)
	}
	length := "{" + strconv.Itoa(least) + ",}"
	return rule{
		keywords: keywords,
		match:    regexp.MustCompile("(" + prefix + class + length + ")"),
		open:     regexp.MustCompile(alternatives(keywords) + class + `*\z`),
	}
}

func alternatives(words []string) string {
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

// certain are the forms that are nothing but secrets. The facts about formats are
// those of the rules of gitleaks v8.30.1 (MIT), which follow what services issue;
// lengths are lower bounds here, since what is longer is no less secret.
func certain() []rule {
	return []rule{
		token("sk-ant-", word, 20), // Anthropic
		token(`sk-(?:proj|svcacct|admin)-`, word, 20, "sk-proj-", "sk-svcacct-", "sk-admin-"), // OpenAI
		{ // OpenAI, of old
			keywords: []string{"T3BlbkFJ", "sk-"},
			match:    regexp.MustCompile(`(sk-[0-9A-Za-z]{20}T3BlbkFJ[0-9A-Za-z]{20})`),
			open:     regexp.MustCompile(`sk-[0-9A-Za-z]{0,48}\z`),
		},
		token("sk-or-v1-", hexa, 32), // OpenRouter
		token("gsk_", alnum, 40),     // Groq
		token("xai-", alnum, 60),     // xAI
		token("pplx-", alnum, 40),    // Perplexity
		token("AIza", word, 35),      // Google
		token("hf_", `[A-Za-z]`, 34, expand("hf_", letters)...),
		token(`gh[pousr]_`, alnum, 36, "ghp_", "gho_", "ghu_", "ghs_", "ghr_"), // GitHub
		token("github_pat_", `[0-9A-Za-z_]`, 60),
		token(`gl(?:pat|dt|rt|ptt|cbt|ft|soat|agent|oas)-`, jwt, 20,
			"glpat-", "gldt-", "glrt-", "glptt-", "glcbt-", "glft-", "glsoat-", "glagent-", "gloas-"), // GitLab
		{ // AWS: the id of a key
			keywords: []string{"AKIA", "ASIA", "ABIA", "ACCA"},
			match:    regexp.MustCompile(`\b((?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16})\b`),
			open:     regexp.MustCompile(`(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{0,16}\z`),
		},
		token(`xox[abeoprs]-`, `[0-9A-Za-z-]`, 20, "xoxa-", "xoxb-", "xoxe-", "xoxo-", "xoxp-", "xoxr-", "xoxs-"), // Slack
		token("xapp-", `[0-9A-Za-z-]`, 20),
		token("hooks.slack.com/services/", `[0-9A-Za-z/]`, 30),
		token(`[sr]k_(?:test|live|prod)_`, alnum, 10, "sk_test_", "sk_live_", "sk_prod_", "rk_test_", "rk_live_", "rk_prod_"), // Stripe
		token("whsec_", `[0-9A-Za-z+/=]`, 24),
		token("npm_", alnum, 36),
		token("pypi-AgEIcHlwaS5vcmc", word, 50),
		token("rubygems_", hexa, 48),
		token("dop_v1_", hexa, 64),         // DigitalOcean
		token("glsa_", `[0-9A-Za-z_]`, 40), // Grafana
		token("glc_", `[0-9A-Za-z+/=]`, 32),
		token("hvs.", word, 80), // Vault
		token("lin_api_", alnum, 40),
		token("ntn_", alnum, 40),
		token("shpat_", hexa, 32),
		token("PMAK-", `[0-9a-f-]`, 50),
		token("sntryu_", hexa, 64),
		token("AGE-SECRET-KEY-1", `[0-9A-Z]`, 58),
		token(`SG\.`, jwt, 60, expand("SG.", letters+digits+"_-")...), // SendGrid
		{ // JSON web tokens
			keywords: expand("eyJ", "hi0jlqrw146p"),
			match:    regexp.MustCompile(`(eyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]*)`),
			open:     regexp.MustCompile(`eyJ[0-9A-Za-z_-]*(?:\.[0-9A-Za-z_-]*){0,2}\z`),
		},
		{ // private keys, to their end or that of the text
			keywords: []string{"-----BEGIN"},
			match:    regexp.MustCompile(`(-----BEGIN[ A-Z0-9]{0,60}PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END[ A-Z0-9]{0,60}PRIVATE KEY(?: BLOCK)?-----|\z))`),
			open: regexp.MustCompile(`-----BEGIN(?:[ A-Z0-9]{0,60}-{0,4}\z|[ A-Z0-9]{0,60}PRIVATE KEY(?: BLOCK)?-----` +
				`(?:[^-]|-{1,4}[^-]|-----[^E])*(?:-----E?N?D?[ A-Z0-9]{0,60}-{0,4}|-{0,4})\z)`),
		},
		{ // NATS: seeds of keys
			keywords: slices.Concat(expand("SUA", seeds), expand("SAA", seeds), expand("SOA", seeds)),
			match:    regexp.MustCompile(`\b(S[UAO]A[A-P][A-Z2-7]{54})\b`),
			open:     regexp.MustCompile(`S[UAO]A[A-P][A-Z2-7]{0,54}\z`),
		},
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
		},
	}
}

// likely are the forms that mostly are secrets: values of names like password.
func likely() []rule {
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

// expand returns the prefix with each of the characters behind it.
func expand(prefix, characters string) []string {
	var out []string
	for _, c := range characters {
		out = append(out, prefix+string(c))
	}
	return out
}
