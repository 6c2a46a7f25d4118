(() => {
  const tip = document.getElementById("tip");
  document.addEventListener("pointermove", (e) => {
    const at = e.target.closest && e.target.closest("[data-tip]");
    tip.hidden = !at;
    if (!at) return;
    tip.textContent = at.dataset.tip;
    const x = Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const y = e.clientY + 18 + tip.offsetHeight > innerHeight ? e.clientY - tip.offsetHeight - 12 : e.clientY + 18;
    tip.style.transform = `translate(${Math.max(8, x)}px, ${y}px)`;
  });
})();
