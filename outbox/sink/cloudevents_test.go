package sink

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/outbox"
)

func event(t *testing.T, contentType, payload string, headers map[string]string) string {
	t.Helper()
	id, err := outbox.ParseID("01890a5d-ac96-774b-bcce-b302099a8057")
	if err != nil {
		t.Fatal(err)
	}
	m := outbox.Message{ID: id, Topic: "orders", Key: "k 1", Payload: []byte(payload), Headers: map[string]string{}}
	if contentType != "" {
		m.Headers["content-type"] = contentType
	}
	for name, value := range headers {
		m.Headers[name] = value
	}
	text, err := NewEvent(&m, "/shop").JSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestEventJSON(t *testing.T) {
	const head = `{"specversion":"1.0","id":"01890a5d-ac96-774b-bcce-b302099a8057","source":"/shop","type":"orders",` +
		`"time":"2023-06-30T03:34:18.518Z","topic":"orders","partitionkey":"k 1",`
	for _, c := range []struct{ name, contentType, payload, want string }{
		{"JSON", "application/json", `{"a":1}`, head + `"datacontenttype":"application/json","data":{"a":1}}`},
		{"guessed JSON", "", `[1]`, head + `"datacontenttype":"application/json","data":[1]}`},
		{"JSON by suffix", "application/x+json; charset=utf-8", `1`, head + `"datacontenttype":"application/x+json; charset=utf-8","data":1}`},
		{"no JSON", "application/json", `{`, head + `"datacontenttype":"application/json","data_base64":"ew=="}`},
		{"text", "text/plain", `a"b`, head + `"datacontenttype":"text/plain","data":"a\"b"}`},
		{"bytes", "", "\xff", head + `"datacontenttype":"application/octet-stream","data_base64":"/w=="}`},
		{"nothing", "", "", head + `"datacontenttype":"application/octet-stream"}`},
		{"no media type", ";", "x", head + `"datacontenttype":";","data_base64":"eA=="}`},
	} {
		if diff := cmp.Diff(c.want, event(t, c.contentType, c.payload, nil)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", c.name, diff)
		}
	}
}

func TestEventAttributesFromHeaders(t *testing.T) {
	got := event(t, "", "", map[string]string{
		"type": "com.example.paid", "subject": "order/42", "source": "/other", "traceparent": "00-1-2-01", "tenant": "t",
		"X-Dash": "stays a header", "id": "not mine to set", "data": "neither",
	})
	var members map[string]any
	if err := json.Unmarshal([]byte(got), &members); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"specversion": "1.0", "id": "01890a5d-ac96-774b-bcce-b302099a8057", "source": "/other", "type": "com.example.paid",
		"subject": "order/42", "time": "2023-06-30T03:34:18.518Z", "topic": "orders", "partitionkey": "k 1", "tenant": "t",
		"traceparent": "00-1-2-01", "datacontenttype": "application/octet-stream",
	}
	if diff := cmp.Diff(want, members); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	m := outbox.Message{Topic: "t", Headers: map[string]string{"X-Dash": "x", "id": "y"}}
	if diff := cmp.Diff(m.Headers, NewEvent(&m, "s").Headers); diff != "" {
		t.Errorf("headers that are no attributes (-want +got)\n%s", diff)
	}
}

func TestHeaderValue(t *testing.T) {
	for in, want := range map[string]string{
		"plain/42": "plain/42", "Euro € 😀": "Euro%20%E2%82%AC%20%F0%9F%98%80", `a"b%`: "a%22b%25", "": "", "\r\n": "%0D%0A",
	} {
		if got := HeaderValue(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func FuzzHeaderValue(f *testing.F) {
	f.Add("a€ %\r\n")
	f.Fuzz(func(t *testing.T, s string) {
		got := HeaderValue(s)
		if strings.ContainsFunc(got, func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Fatalf("%q is not printable ASCII", got)
		}
		if back, err := url.PathUnescape(got); err != nil || back != s {
			t.Fatalf("%q comes back as %q, %v", s, back, err)
		}
	})
}
