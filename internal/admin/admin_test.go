package admin_test

import (
	"bufio"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirdb/weir/internal/admin"
)

// On loopback a request for another name is refused; one that names no host, as
// HAProxy's health check in HTTP/1.0 is, is answered.
func TestGuard(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	end := make(chan error, 1)
	go func() {
		h := admin.Guard(admin.Mux(prometheus.NewRegistry()), true, "default-src 'none'")
		end <- admin.Serve(t.Context(), ln, h, slog.New(slog.DiscardHandler))
	}()
	for request, want := range map[string]int{
		"OPTIONS /healthz HTTP/1.0":                        http.StatusMethodNotAllowed,
		"GET /healthz HTTP/1.0":                            http.StatusOK,
		"GET /healthz HTTP/1.1\r\nHost: localhost":         http.StatusOK,
		"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:9187":    http.StatusOK,
		"GET /healthz HTTP/1.1\r\nHost: [::1]":             http.StatusOK,
		"GET /healthz HTTP/1.1\r\nHost: site.example":      http.StatusMisdirectedRequest,
		"GET /healthz HTTP/1.0\r\nHost: site.example:9187": http.StatusMisdirectedRequest,
		"GET /healthz HTTP/1.1\r\nHost: localhost.example": http.StatusMisdirectedRequest,
		"GET /healthz HTTP/1.1":                            http.StatusBadRequest,
	} {
		conn, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "%s\r\n\r\n", request); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", request, err)
		}
		if answer.StatusCode != want {
			t.Errorf("%q: %d, want %d", request, answer.StatusCode, want)
		}
		_ = answer.Body.Close()
		_ = conn.Close()
	}
	select {
	case err := <-end:
		t.Errorf("ended: %v", err)
	default:
	}
}
