//! What a cache and a configuration say of themselves.
use super::*;

#[test]
fn a_plan_is_what_a_cache_reserves() {
    let plan_of = |config: &certkv_config| {
        let mut plan = certkv_plan { struct_size: size_of::<certkv_plan>() as u32, ..Default::default() };
        // SAFETY: whole structs.
        assert_eq!(unsafe { certkv_config_plan(config, &mut plan) }, CERTKV_OK, "{}", message());
        plan
    };
    let config = certkv_config { scratch_keys: 3, ..config() };
    let (plan, seen) = (plan_of(&config), Cache::new(&config).snapshot());
    let classes = [seen.packed, seen.scratch, seen.tables, seen.host].map(|class| class.reserved);
    assert_eq!([plan.packed, plan.scratch, plan.tables, plan.host], classes);
    assert_eq!((plan.device_bytes, plan.host_bytes), (seen.device_memory.reserved, seen.host_memory.reserved));
    assert!(classes.iter().all(|bytes| *bytes > 0) && plan.later > 0 && plan.assumed == 0);
    assert_eq!((plan.device_budget, plan.host_budget, plan.device_lacks), (u64::MAX, u64::MAX, 0));
    let tight = certkv_config { device_budget: plan.device_bytes - 5, host_budget: plan.host_bytes - 7, ..config };
    let short = plan_of(&tight);
    assert_eq!((short.device_lacks, short.host_lacks, short.packed), (5, 7, plan.packed));
    // On a GPU, or as if there were one.
    // SAFETY: the out parameter is a whole struct.
    unsafe {
        let mut plan = certkv_plan { struct_size: size_of::<certkv_plan>() as u32, ..Default::default() };
        match certkv_config_plan(&certkv_config { device: CERTKV_DEVICE_CUDA, scratch_keys: 0, ..config }, &mut plan) {
            CERTKV_OK => assert!(plan.device_bytes > 0 && plan.host_bytes > 0 && plan.assumed <= 1),
            refused => assert_eq!(refused, CERTKV_DEVICE, "{}", message()),
        }
        for size in [0, 4, 4097, u32::MAX] {
            let mut bad = certkv_plan { struct_size: size, packed: 7, ..Default::default() };
            assert_eq!(certkv_config_plan(&config, &mut bad), CERTKV_STRUCT_SIZE);
            let mut wrong = certkv_snapshot { struct_size: size, tokens: 7, ..Default::default() };
            assert_eq!(certkv_cache_snapshot(Cache::new(&config).0, &mut wrong), CERTKV_STRUCT_SIZE);
            assert_eq!((bad.packed, wrong.tokens), (7, 7));
        }
        // A shorter struct of an older header is filled as far as it goes.
        let mut older = certkv_plan { struct_size: 16, scratch: 7, ..Default::default() };
        assert_eq!(certkv_config_plan(&config, &mut older), CERTKV_OK);
        assert_eq!((older.packed, older.scratch), (classes[0], 7));
        assert_eq!(certkv_config_plan(&config, ptr::null_mut()), CERTKV_NULL_POINTER);
        assert_eq!(certkv_config_plan(ptr::null(), &mut older), CERTKV_NULL_POINTER);
        let odd = (&raw mut older).cast::<u8>().wrapping_add(1);
        assert_eq!(certkv_config_plan(&config, odd.cast()), CERTKV_MISALIGNED);
        assert_eq!(certkv_config_plan(odd.cast::<certkv_config>(), &mut older), CERTKV_MISALIGNED);
        assert_eq!(certkv_config_plan(&certkv_config { layers: 0, ..config }, &mut older), CERTKV_INVALID_ARGUMENT);
        assert_eq!(certkv_config_plan(&certkv_config { erase: 2, ..config }, &mut older), CERTKV_INVALID_ARGUMENT);
        let mut seen = certkv_snapshot { struct_size: 16, busy: 7, ..Default::default() };
        for (handle, status) in no_caches() {
            assert_eq!(certkv_cache_snapshot(handle, &mut seen), status);
        }
        let cache = Cache::new(&config);
        assert_eq!(certkv_cache_snapshot(cache.0, ptr::null_mut()), CERTKV_NULL_POINTER);
        assert_eq!(certkv_cache_snapshot(cache.0, odd.cast()), CERTKV_MISALIGNED);
        cache.create();
        assert_eq!(certkv_cache_snapshot(cache.0, &mut seen), CERTKV_OK);
        assert_eq!((seen.sequences, seen.busy), (1, 7));
    }
}
