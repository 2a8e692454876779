package main

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/lab/labtest"
)

// theDay is the expected output of both shops.
var theDay = []string{
	"order 1 of ada: committed with its message",
	"order 2 of bob: sold out, rolled back with its message",
	"order 3 of ada: committed with its message",
	"order 4 of bob: committed with its message",
}

func TestShopOnSQLite(t *testing.T) {
	var out bytes.Buffer
	if err := onSQLite(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(got) != 7 || !slices.Equal(got[:4], theDay) {
		t.Fatalf("printed\n%s", out.String())
	}
	number := regexp.MustCompile(`"number":(\d)`)
	var ada, bob []string
	for _, line := range got[4:] {
		n := number.FindStringSubmatch(line)
		switch {
		case n == nil:
			t.Errorf("no order: %s", line)
		case strings.Contains(line, `"key":"ada"`):
			ada = append(ada, n[1])
		case strings.Contains(line, `"key":"bob"`):
			bob = append(bob, n[1])
		}
	}
	if !slices.Equal(ada, []string{"1", "3"}) || !slices.Equal(bob, []string{"4"}) {
		t.Errorf("delivered %q of ada, %q of bob", ada, bob)
	}
}

func TestShopInTheLab(t *testing.T) {
	labtest.RequirePostgres(t)
	labtest.RequireNATS(t)
	var out bytes.Buffer
	if err := inTheLab(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(got) != 11 || !slices.Equal(got[:4], theDay) || got[10] != "shipping: 3 messages came twice, 3 parcels were sent" {
		t.Errorf("printed\n%s", out.String())
	}
}
