package sink

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/outbox"
)

// keyed makes messages whose keys are the words of text, "-" for none.
func keyed(text string) []outbox.Message {
	var msgs []outbox.Message
	for n, key := range strings.Fields(text) {
		msgs = append(msgs, outbox.Message{ID: outbox.NewID(), Topic: "t", Key: strings.Trim(key, "-"), Payload: fmt.Append(nil, n)})
	}
	return msgs
}

func TestWaves(t *testing.T) {
	plain := errors.New("refused")
	down := outbox.Unavailable(errors.New("down"))
	held := outbox.ErrHeldBack
	for _, c := range []struct {
		name  string
		keys  string
		fails map[int]error
		waves string
		want  []error
	}{
		{"distinct keys go at once", "a b c", nil, "[0 1 2]", nil},
		{"one key goes one by one", "a a a", nil, "[0] [1] [2]", nil},
		{"no key goes at once", "- - a a -", nil, "[0 1 2 4] [3]", nil},
		{"a failure holds its own key back", "a b a b -", map[int]error{0: plain}, "[0 1 4] [3]", []error{plain, nil, held, nil, nil}},
		{"without a key nothing is held back", "- - -", map[int]error{1: plain}, "[0 1 2]", []error{nil, plain, nil}},
		{"an outage ends it", "a b a b c", map[int]error{0: down}, "[0 1 4]", []error{down, nil, held, held, nil}},
		{"nothing", "", nil, "", nil},
	} {
		var seen []string
		got := Waves(t.Context(), keyed(c.keys), func(_ context.Context, wave []int, errs []error) {
			seen = append(seen, fmt.Sprint(wave))
			for _, i := range wave {
				errs[i] = c.fails[i]
			}
		})
		if s := strings.Join(seen, " "); s != c.waves {
			t.Errorf("%s: waves %s, want %s", c.name, s, c.waves)
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: result %v, want %v", c.name, got, c.want)
			continue
		}
		for i := range got {
			if !errors.Is(got[i], c.want[i]) {
				t.Errorf("%s: message %d: %v, want %v", c.name, i, got[i], c.want[i])
			}
		}
	}
}

func TestWavesEndWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	sends := 0
	errs := Waves(ctx, keyed("a a a b"), func(context.Context, []int, []error) {
		sends++
		cancel()
	})
	if sends != 1 || errs[0] != nil || errs[3] != nil || !errors.Is(errs[1], context.Canceled) || !errors.Is(errs[2], context.Canceled) {
		t.Errorf("%d waves, then %v: want one, its messages confirmed, the others with the context's error", sends, errs)
	}
}

func TestChains(t *testing.T) {
	got := Chains(keyed("a - b a - a"))
	if diff := cmp.Diff([][]int{{0, 3, 5}, {1}, {2}, {4}}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestTemplate(t *testing.T) {
	m := outbox.Message{Topic: "orders", Key: "{topic}"}
	for template, want := range map[Template]string{
		"{topic}": "orders", "{key}": "{topic}", "x.{topic}.{key}": "x.orders.{topic}", "fixed": "fixed",
	} {
		if got := template.Expand(&m); got != want || template.Check() != nil {
			t.Errorf("%s: %q (%v), want %q", template, got, template.Check(), want)
		}
	}
	for _, bad := range []Template{"{topik}", "{", "a}"} {
		if bad.Check() == nil {
			t.Errorf("%s passes the check", bad)
		}
	}
}
