package console

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	"code.wake.dev/wake/pkg/wire"
)

// policy is what pages may do: nothing but what comes from here, and no script or style in them.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; base-uri 'self'; frame-ancestors 'none'"

// maxBody bounds what is posted.
const maxBody = 1 << 20

// sessionsPath is where sessions of programs are kept; their handler bounds the bodies.
const sessionsPath = "/sessions/"

// guard lets pass what comes from a page of this console, or from no page, and is asked by its own
// name: pages of others that a browser also shows, and names that lead here, get nothing.
func (s *Console) guard(next http.Handler) http.Handler {
	origins := http.NewCrossOriginProtection()
	if u, err := url.Parse(s.c.Public); err == nil && s.c.Public != "" {
		_ = origins.AddTrustedOrigin(u.Scheme + "://" + u.Host) // New has looked at it
	}
	inner := origins.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if !s.isOwnName(r.Host) {
			http.Error(w, "this console has another name", http.StatusForbidden)
			return
		}
		if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate" {
			http.Error(w, "another site may not ask for this", http.StatusForbidden)
			return
		}
		if !strings.HasPrefix(r.URL.Path, sessionsPath) {
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		}
		inner.ServeHTTP(w, r)
	})
}

// isOwnName reports whether a request names this console. On loopback any domain's name may lead here; a proxy may pass on its own.
func (s *Console) isOwnName(host string) bool {
	if u, err := url.Parse(s.c.Public); err == nil && s.c.Public != "" && strings.EqualFold(u.Host, host) {
		return true
	}
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = host, map[string]string{"http": "80", "https": "443"}[s.scheme]
	}
	at := s.listener.Addr().(*net.TCPAddr)
	if !at.IP.IsLoopback() {
		return true // TLS has the name
	}
	_, own, _ := net.SplitHostPort(at.String())
	return IsLoopback(name) && port == own
}

type userKey struct{}

func userOfRequest(r *http.Request) *user {
	u, _ := r.Context().Value(userKey{}).(*user)
	return u
}

// cookieName is that of this console: ports share cookies.
func (s *Console) cookieName() string {
	_, port, _ := net.SplitHostPort(s.listener.Addr().String())
	return "wake-console-" + port
}

// identify returns the user of a request: by the cookie of a page, or by the token of a program.
func (s *Console) identify(r *http.Request) *user {
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return s.userOf(token, tokenOf)
	}
	if c, err := r.Cookie(s.cookieName()); err == nil {
		return s.userOf(c.Value, sessionOf)
	}
	return nil
}

// allow lets users of the role pass. Others get the page on which they sign in.
func (s *Console) allow(least role, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		u := s.identify(r)
		switch {
		case u == nil && r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html"):
			s.showPage(w, r, http.StatusUnauthorized, "signin", page{Title: "Sign in"})
		case u == nil:
			s.showError(w, r, &wire.APIError{Code: wire.CodeDenied, Message: "there is no token, or another one's", Hint: "open the address that `wake up` has printed"})
		case !u.may(least):
			s.showError(w, r, &wire.APIError{Code: wire.CodeDenied, Message: "the role " + string(u.role) + " may not do this", Hint: "it takes the role " + string(least)})
		default:
			ctx := context.WithValue(r.Context(), userKey{}, u)
			next(w, r.WithContext(context.WithValue(ctx, lagKey{}, new(atomic.Uint64))))
		}
	}
}

// signIn takes a token and gives a cookie that scripts can't read and other sites can't send.
func (s *Console) signIn(w http.ResponseWriter, r *http.Request) {
	u := s.userOf(r.FormValue("token"), tokenOf)
	if u == nil {
		s.showError(w, r, &wire.APIError{Code: wire.CodeDenied, Message: "there is no such token"})
		return
	}
	http.SetCookie(w, &http.Cookie{
		Name: s.cookieName(), Value: sessionOf(*u), Path: "/", HttpOnly: true, Secure: s.scheme == "https", SameSite: http.SameSiteStrictMode, MaxAge: 30 * 24 * 3600,
	})
	redirectBelow(w, r, "", http.StatusSeeOther)
}

func (s *Console) signOut(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, &http.Cookie{Name: s.cookieName(), Path: "/", HttpOnly: true, MaxAge: -1, SameSite: http.SameSiteStrictMode})
	redirectBelow(w, r, "", http.StatusSeeOther)
}
