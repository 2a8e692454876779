// Numbers for people: three significant digits, of a width that does not jump;
// round ones, for an axis, without zeros behind the point.

export function count(v, round = false) {
  const a = Math.abs(v);
  if (a >= 1e9) return digits(v / 1e9, round) + "G";
  if (a >= 1e6) return digits(v / 1e6, round) + "M";
  if (a >= 1e4) return digits(v / 1e3, round) + "k";
  if (a >= 100 || Number.isInteger(v)) return String(Math.round(v));
  return digits(v, round);
}

// ms renders milliseconds with the unit that fits.
export function ms(v, round = false) {
  if (v === 0) return "0";
  if (v < 0.9995) return digits(v * 1000, round) + " µs";
  if (v < 999.5) return digits(v, round) + " ms";
  return digits(v / 1000, round) + " s";
}

export const ns = (v) => ms(v / 1e6);

export function bytes(v) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let i = 0;
  for (; v >= 1024 && i < units.length - 1; i++) v /= 1024;
  return (i === 0 ? Math.round(v) : digits(v)) + " " + units[i];
}

export const percent = (v) => Math.round(v * 100) + " %";

export function age(seconds) {
  const d = Math.floor(seconds / 86400);
  const h = Math.floor(seconds / 3600) % 24;
  const m = Math.floor(seconds / 60) % 60;
  if (d > 0) return `${d} d ${h} h`;
  if (h > 0) return `${h} h ${m} min`;
  if (m > 0) return `${m} min`;
  return `${Math.floor(seconds)} s`;
}

function digits(v, round = false) {
  if (round) return String(Number(v.toPrecision(3)));
  const a = Math.abs(v);
  return v.toFixed(a >= 99.95 ? 0 : a >= 9.995 ? 1 : 2);
}
