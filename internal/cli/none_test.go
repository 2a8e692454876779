package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestNone(t *testing.T) {
	var limit int
	var keep time.Duration
	var windows []time.Duration
	f := pflag.NewFlagSet("verb", pflag.ContinueOnError)
	f.IntVar(&limit, "limit", 0, "at most this many")
	f.DurationSliceVar(&windows, "window", nil, "windows to compare")
	OrNone(f, "limit", "0")
	OrNone(f, "window", "0s")
	f.DurationVar(&keep, "keep", time.Hour, "for how long; negative: for good")
	OrNone(f, "keep", "-1ns")
	for _, word := range []string{"none", "never", "forever", "off", "0"} {
		limit, windows = 7, nil
		if err := f.Parse([]string{"--limit", word, "--window", "1h, " + word}); err != nil || limit != 0 || !slices.Equal(windows[len(windows)-2:], []time.Duration{time.Hour, 0}) {
			t.Errorf("%s: limit %d, windows %v: %v", word, limit, windows, err)
		}
		type config struct{ d time.Duration }
		c := config{time.Second}
		if err := Span(None, func(c *config) *time.Duration { return &c.d })(&c, word); err != nil || c.d != 0 {
			t.Errorf("a duration of %s: %v, %v", word, c.d, err)
		}
		if err := Span("", func(c *config) *time.Duration { return &c.d })(&c, word); err == nil {
			t.Errorf("a duration that must be: %s is taken", word)
		}
	}
	for word, want := range map[string]time.Duration{"none": -1, "never": -1, "0": 0, "0s": 0, "5m": 5 * time.Minute} {
		if err := f.Parse([]string{"--keep", word}); err != nil || keep != want {
			t.Errorf("--keep %s, where less than 0 is none: %v, want %v: %v", word, keep, want, err)
		}
	}
	if err := f.Parse([]string{"--limit", "some"}); err == nil || !strings.Contains(err.Error(), "--limit") {
		t.Errorf("--limit some: %v", err)
	}
	var out bytes.Buffer
	if out.WriteString(FlagTable(f, nil)); !strings.Contains(out.String(), "--limit N") || !strings.Contains(out.String(), "(default none)") || strings.Contains(out.String(), "--window TEXT") {
		t.Errorf("the help:\n%s", out.String())
	}
}
