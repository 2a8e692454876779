package sim

import (
	"os"
	"testing"
	"time"
)

func costs() []Cost {
	const us = time.Microsecond
	var all []Cost
	for _, c := range []Cost{{Fixed: 50 * us, PerItem: us}, {Fixed: 2000 * us, PerItem: 2 * us}, {Fixed: 10_000 * us, PerItem: us}} {
		for _, s := range []int{0, 2, 1} {
			c.Servers = s
			all = append(all, c)
		}
	}
	return all
}

func TestTable(t *testing.T) {
	var cells []Cell
	for _, c := range costs() {
		for _, r := range []float64{100, 1000, 10_000, 100_000, 1e6} {
			cells = append(cells, Compare(c, Load{Rate: r}, 4, 1))
		}
	}
	WriteTable(os.Stdout, cells)
	cells = nil
	for _, c := range costs() {
		for _, n := range []int{1, 4, 16, 64, 256, 1000} {
			cells = append(cells, Compare(c, Load{Clients: n, Think: 50 * time.Microsecond}, 4, 1))
		}
	}
	WriteTable(os.Stdout, cells)
}
