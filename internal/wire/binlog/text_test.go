package binlog

import (
	"strconv"
	"testing"
)

func itoa(n int) string { return strconv.Itoa(n) }

func atoi(t testing.TB, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func column(i int) string { return "c" + itoa(i) }
